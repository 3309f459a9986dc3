"""What was used: an account's days, and the export whose sum is the ledger's."""
from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TextIO

from frontend.accounts.audit import Action, Actor, record
from frontend.db import Database
from frontend.db import balances as balance_rows
from frontend.db import usage as rows
from frontend.db.token_records import Balance, DayUsage, KeyUsage, LimitOverrides, UsageRecord
from frontend.errors import InvalidRequest

_PAGE = 1000
COLUMNS = ("id", "at", "account_id", "key_id", "model", "route", "user", "prompt_tokens", "completion_tokens",
           "charged", "activation_bytes", "status", "latency_ms", "settled_by")


@dataclass(frozen=True)
class Usage:
    """An account's tokens now, and what it used by day and model, at one moment."""

    balance: Balance
    days: list[DayUsage]


def usage_by_key(database: Database, account_id: str, days: int) -> list[KeyUsage]:
    """What an account used by key and model on the same days as `usage`."""
    with database.read() as connection:
        return rows.usage_by_key(connection, account_id, _first_day(days))


def all_balances(database: Database) -> dict[str, Balance]:
    """The tokens of every account that was ever granted any."""
    with database.read() as connection:
        return balance_rows.all_balances(connection)


def usage(database: Database, account_id: str, days: int) -> Usage:
    """An account's tokens, and what it used today (UTC) and on the days before, `days` in all."""
    with database.read() as connection:
        return Usage(balance_rows.balance_of(connection, account_id),
                     rows.usage_by_day(connection, account_id, _first_day(days)))


def export_usage(
    database: Database, account_id: str | None = None, since: datetime | None = None, until: datetime | None = None
) -> Iterator[UsageRecord]:
    """Usage records by time: of an account, or all; from `since` on, before `until`.

    Without times, `charged` adds up to the charges of the ledger. Read in pages, so that no transaction stays open.
    """
    with database.read() as connection:
        # Without an end, what is written while we read would make the export longer and longer.
        last = rows.last_usage(connection)
    after = None
    while last is not None:
        with database.read() as connection:
            page = list(rows.usage_page(connection, account_id, since, until, after, last, _PAGE))
        yield from page
        if len(page) < _PAGE:
            return
        after = (page[-1].at, page[-1].id)


def note_export(
    database: Database, by: Actor, account_id: str | None = None, since: datetime | None = None,
    until: datetime | None = None,
) -> None:
    """Put into the audit log who is given `export_usage` of the same. Raises Unavailable."""
    with database.write() as connection:
        record(connection, by, Action.USAGE_EXPORT, account_id or "*", account_id, {
            "since": since.isoformat() if since else None, "until": until.isoformat() if until else None})


def write_csv(records: Iterable[UsageRecord], out: TextIO) -> None:
    """Write usage records as CSV with a head. A caller's `user` that a spreadsheet would run gets a quote in front."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in records:
        writer.writerow((
            row.id, row.at.isoformat(timespec="milliseconds"), row.account_id, row.key_id, row.model,
            row.route, _harmless(row.user_tag or ""), row.prompt_tokens, row.completion_tokens,
            row.charged, row.activation_bytes, row.status,
            "" if row.latency_ms is None else row.latency_ms, row.settled_by))


def own_limits(database: Database, account_id: str) -> LimitOverrides:
    """Where an account's limits differ from the settings'."""
    with database.read() as connection:
        return rows.limits_of(connection, account_id)


def change_limits(database: Database, by: Actor, account_id: str, **changes: int | None) -> LimitOverrides:
    """Change some of an account's own limits; None is the setting's again. All that it has now. Raises InvalidRequest.
    """
    with database.write() as connection:
        before = rows.limits_of(connection, account_id)
        limits = replace(before, **changes)
        if limits != before:
            _check_limits(limits)
            rows.set_limits(connection, account_id, limits)
            record(connection, by, Action.LIMITS_SET, account_id, account_id, asdict(limits))
    return limits


def _first_day(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days - 1)).strftime("%Y-%m-%d")


def _check_limits(limits: LimitOverrides) -> None:
    for name, value, least in (("requests_per_minute", limits.requests_per_minute, 1), ("active", limits.active, 1),
                               ("waiting", limits.waiting, 0)):
        if value is not None and not least <= value <= 1_000_000:
            raise InvalidRequest(f"{name} is a number from {least} to 1000000.", name)


def _harmless(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
