"""The Spend limit: how much a month of engines may cost, of one model or of all, and what happens near it."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

import structlog
from sqlalchemy import Connection

from frontend.accounts.audit import Action, Actor, record
from frontend.db import Database
from frontend.db import spend as rows
from frontend.db.spend import EVERYTHING as EVERYTHING
from frontend.db.token_records import Uptime
from frontend.errors import InvalidRequest, SpendCap

#: Prices and limits are whole millionths of a US dollar.
MICROS = 1_000_000
WARN_PERCENT = 80
_MILLISECONDS_PER_HOUR = 3_600_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Spend:
    """What one scope, a model or EVERYTHING, cost in a month (UTC, as 2026-01), in dollars, and its limit if any."""

    scope: str
    month: str
    hours: float
    dollars: float
    limit: float | None


def check_spend(connection: Connection, model: str, now: datetime) -> None:
    """Raise SpendCap where new work on a model is paused."""
    limits = rows.limits_on(connection, model)
    month = month_of(now)
    uptimes = rows.uptimes(connection, month)
    for scope, limit in limits.items():
        if _reached(uptimes, scope, limit, 100):
            what = "all models" if scope == EVERYTHING else repr(scope)
            raise SpendCap(f"New work on {model!r} is paused: the Spend limit of {month} for {what} is reached. "
                           "An admin can raise it.", headers={"x-should-retry": "false"})


def is_paused(database: Database, model: str) -> bool:
    """Whether new work on a model is paused: it must not be loaded either."""
    with database.read() as connection:
        try:
            check_spend(connection, model, rows.now(connection))
        except SpendCap:
            return True
    return False


def set_spend_limit(database: Database, by: Actor, scope: str, dollars: float | None) -> None:
    """Limit what a model, or EVERYTHING, may cost in a month; None takes the limit away. Raises InvalidRequest."""
    if dollars is not None and not 0 <= dollars <= 10**9:
        raise InvalidRequest("A Spend limit is an amount of dollars from 0 to 1000000000.", "dollars")
    micros = None if dollars is None else round(dollars * MICROS)
    with database.write() as connection:
        rows.set_limit(connection, scope, micros)
        record(connection, by, Action.SPEND_LIMIT_SET, scope, None, {"dollars": dollars})


def show_spend(database: Database, month: str | None = None) -> list[Spend]:
    """What each model cost in a month, this one by default, and all together: last, and always there."""
    with database.read() as connection:
        month = month or month_of(rows.now(connection))
        uptimes, limits = rows.uptimes(connection, month), rows.limits(connection)
    scopes = sorted({uptime.model for uptime in uptimes} | set(limits) - {EVERYTHING})
    return [_spend(scope, month, uptimes, limits.get(scope)) for scope in [*scopes, EVERYTHING]]


def spend_by_day(database: Database, month: str) -> dict[str, dict[str, float]]:
    """What each model cost on each day of a month (UTC), in dollars, as far as that was counted by day."""
    with database.read() as connection:
        days = rows.costs_by_day(connection, month)
    return {day: {model: float(Fraction(cost, _MILLISECONDS_PER_HOUR * MICROS)) for model, cost in models.items()}
            for day, models in days.items()}


def warn(database: Database) -> list[Spend]:
    """Log a warning for each limit of which 80 % are used, once for each month and amount. Returns those that are new.
    """
    new = []
    with database.read() as connection:
        limits = rows.limits(connection)
        month = month_of(rows.now(connection))
        uptimes = rows.uptimes(connection, month) if limits else []
    for scope, limit in limits.items():
        if _reached(uptimes, scope, limit, WARN_PERCENT):
            with database.write() as connection:
                first = rows.note_warning(connection, scope, month, limit, WARN_PERCENT, datetime.now(UTC))
            if first:
                spend = _spend(scope, month, uptimes, limit)
                _log.warning("spend_limit_near", scope=scope, month=month, dollars=round(spend.dollars, 2),
                             limit=spend.limit, percent=WARN_PERCENT)
                new.append(spend)
    return new


def month_of(moment: datetime) -> str:
    """A moment's month in UTC, as 2026-01."""
    return moment.astimezone(UTC).strftime("%Y-%m")


def _reached(uptimes: Iterable[Uptime], scope: str, limit: int, percent: int) -> bool:
    return _cost(uptimes, scope) * 100 >= limit * percent


def _cost(uptimes: Iterable[Uptime], scope: str) -> Fraction:
    """Millionths of a dollar, exactly."""
    parts = sum(uptime.milliseconds * uptime.price for uptime in uptimes if scope in (uptime.model, EVERYTHING))
    return Fraction(parts, _MILLISECONDS_PER_HOUR)


def _spend(scope: str, month: str, uptimes: Iterable[Uptime], limit: int | None) -> Spend:
    uptimes = list(uptimes)
    milliseconds = sum(uptime.milliseconds for uptime in uptimes if scope in (uptime.model, EVERYTHING))
    return Spend(scope, month, milliseconds / _MILLISECONDS_PER_HOUR, float(_cost(uptimes, scope) / MICROS),
                 None if limit is None else limit / MICROS)
