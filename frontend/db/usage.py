"""The statements that read usage records, and those about single accounts' limits."""
from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Connection, Tuple, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from frontend.db.token_records import DayUsage, KeyUsage, LimitOverrides, UsageRecord
from frontend.db.token_tables import account_limits, usage_records

_RECORD = tuple(column for column in usage_records.c if column.name != "day")


def usage_by_day(connection: Connection, account_id: str, first_day: str) -> list[DayUsage]:
    """What an account used from a day on (UTC, as 2026-01-31), by day and model, in that order."""
    columns = usage_records.c
    query = (
        select(columns.day, columns.model, func.count(), func.sum(columns.prompt_tokens),
               func.sum(columns.completion_tokens), func.sum(columns.charged))
        .where(columns.account_id == account_id, columns.day >= first_day)
        .group_by(columns.day, columns.model).order_by(columns.day, columns.model)
    )
    return [DayUsage(day, model, *map(int, numbers)) for day, model, *numbers in connection.execute(query)]


def usage_by_key(connection: Connection, account_id: str, first_day: str) -> list[KeyUsage]:
    """What an account used from a day on (UTC, as 2026-01-31), by key and model, in that order."""
    columns = usage_records.c
    query = (
        select(columns.key_id, columns.model, func.count(), func.sum(columns.prompt_tokens),
               func.sum(columns.completion_tokens), func.sum(columns.charged))
        .where(columns.account_id == account_id, columns.day >= first_day)
        .group_by(columns.key_id, columns.model).order_by(columns.key_id, columns.model)
    )
    return [KeyUsage(key_id, model, *map(int, numbers)) for key_id, model, *numbers in connection.execute(query)]


#: A record's place in the order of time, which is (at, id).
Place = tuple[datetime, str]
_ORDER = (usage_records.c.at, usage_records.c.id)


def last_usage(connection: Connection) -> Place | None:
    """The last record that there is."""
    row = connection.execute(select(*_ORDER).order_by(*(column.desc() for column in _ORDER)).limit(1)).one_or_none()
    return (row.at, row.id) if row else None


def usage_page(
    connection: Connection, account_id: str | None, since: datetime | None, until: datetime | None,
    after: Place | None, last: Place, size: int,
) -> Iterator[UsageRecord]:
    """The next `size` records by time, up to `last`: of an account, or all; from `since` on, before `until`."""
    query = select(*_RECORD).order_by(*_ORDER).limit(size).where(tuple_(*_ORDER) <= _place(last))
    if account_id is not None:
        query = query.where(usage_records.c.account_id == account_id)
    if since is not None:
        query = query.where(usage_records.c.at >= since)
    if until is not None:
        query = query.where(usage_records.c.at < until)
    if after is not None:
        query = query.where(tuple_(*_ORDER) > _place(after))
    return (UsageRecord(**row._mapping) for row in connection.execute(query))


def _place(place: Place) -> Tuple:
    return tuple_(*place, types=[column.type for column in _ORDER])


def limits_of(connection: Connection, account_id: str) -> LimitOverrides:
    """Where an account's limits differ."""
    columns = account_limits.c
    query = select(columns.requests_per_minute, columns.active, columns.waiting)
    row = connection.execute(query.where(columns.account_id == account_id)).one_or_none()
    return LimitOverrides(*row) if row else LimitOverrides()


def set_limits(connection: Connection, account_id: str, limits: LimitOverrides) -> None:
    """Say where an account's limits differ."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(account_limits).values(account_id=account_id, **vars(limits))
    connection.execute(statement.on_conflict_do_update(index_elements=["account_id"], set_=vars(limits)))
