"""What was used: an account's days, and the export whose sum is the ledger's."""
from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TextIO

from frontend.db import Database
from frontend.db import balances as balance_rows
from frontend.db import usage as rows
from frontend.db.token_records import Balance, DayUsage, LimitOverrides, UsageRecord
from frontend.errors import InvalidRequest

_PAGE = 1000
COLUMNS = ("id", "at", "account_id", "key_id", "model", "route", "user", "prompt_tokens", "completion_tokens",
           "charged", "activation_bytes", "status", "latency_ms", "settled_by")


@dataclass(frozen=True)
class Usage:
    """An account's tokens now, and what it used by day and model, at one moment."""

    balance: Balance
    days: list[DayUsage]


def usage(database: Database, account_id: str, days: int) -> Usage:
    """An account's tokens, and what it used today (UTC) and on the days before, `days` in all."""
    first = (datetime.now(UTC) - timedelta(days=days - 1)).strftime("%Y-%m-%d")
    with database.read() as connection:
        return Usage(balance_rows.balance_of(connection, account_id), rows.usage_by_day(connection, account_id, first))


def export_usage(
    database: Database, account_id: str | None = None, since: datetime | None = None, until: datetime | None = None
) -> Iterator[UsageRecord]:
    """Usage records by time: of an account, or all; from `since` on, before `until`.

    Without times, `charged` adds up to the charges of the ledger. Read in pages, so that no transaction stays open.
    """
    # Without an end, what is written while we read would make the export longer and longer.
    until = until or datetime.now(UTC)
    after = None
    while True:
        with database.read() as connection:
            page = list(rows.usage_page(connection, account_id, since, until, after, _PAGE))
        yield from page
        if len(page) < _PAGE:
            return
        after = (page[-1].at, page[-1].id)


def write_csv(records: Iterable[UsageRecord], out: TextIO) -> None:
    """Write usage records as CSV with a head. A caller's `user` that a spreadsheet would run gets a quote in front."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in records:
        writer.writerow((
            record.id, record.at.isoformat(timespec="milliseconds"), record.account_id, record.key_id, record.model,
            record.route, _harmless(record.user_tag or ""), record.prompt_tokens, record.completion_tokens,
            record.charged, record.activation_bytes, record.status,
            "" if record.latency_ms is None else record.latency_ms, record.settled_by))


def set_limits(database: Database, account_id: str, limits: LimitOverrides) -> None:
    """Give an account limits of its own. Raises InvalidRequest."""
    for name, value, least in (("requests_per_minute", limits.requests_per_minute, 1), ("active", limits.active, 1),
                               ("waiting", limits.waiting, 0)):
        if value is not None and not least <= value <= 1_000_000:
            raise InvalidRequest(f"{name} is a number from {least} to 1000000.", name)
    with database.write() as connection:
        rows.set_limits(connection, account_id, limits)


def _harmless(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
