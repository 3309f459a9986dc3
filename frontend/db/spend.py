"""The statements about spend: uptime that is counted once, limits, and warnings that are given once."""
from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import BindParameter, Connection, ScalarSelect, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from frontend.db.spend_tables import engine_days, engine_uptime, spend_limits, spend_warnings, uptime_marks
from frontend.db.token_records import Uptime

#: The scope of the limit on all models together.
EVERYTHING = "*"


def now(connection: Connection) -> datetime:
    """The time by the clock that all processes at one database share: PostgreSQL's own, or this machine's."""
    if connection.dialect.name == "sqlite":
        return datetime.now(UTC)
    moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def lock_mark(connection: Connection, model: str, at: datetime) -> datetime:
    """Up to when a model's uptime is counted, which nobody else can change until the transaction ends; `at` at first.
    """
    connection.execute(_insert(connection)(uptime_marks).values(model=model, counted_until=at).on_conflict_do_nothing())
    query = select(uptime_marks.c.counted_until).where(uptime_marks.c.model == model).with_for_update()
    mark: datetime = connection.execute(query).scalar_one()
    return mark


def move_mark(connection: Connection, model: str, to: datetime) -> None:
    """Count as done up to `to`."""
    connection.execute(update(uptime_marks).where(uptime_marks.c.model == model).values(counted_until=to))


def add_uptime(connection: Connection, uptime: Uptime) -> None:
    """Add milliseconds to the row of a model, month and price."""
    statement = _insert(connection)(engine_uptime).values(vars(uptime))
    connection.execute(statement.on_conflict_do_update(
        index_elements=["model", "month", "price"],
        set_={"milliseconds": engine_uptime.c.milliseconds + statement.excluded.milliseconds}))


def add_day(connection: Connection, model: str, day: str, price: int, milliseconds: int) -> None:
    """Add milliseconds to the row of a model, day and price."""
    statement = _insert(connection)(engine_days).values(model=model, day=day, price=price, milliseconds=milliseconds)
    connection.execute(statement.on_conflict_do_update(
        index_elements=["model", "day", "price"],
        set_={"milliseconds": engine_days.c.milliseconds + statement.excluded.milliseconds}))


def costs_by_day(connection: Connection, month: str) -> dict[str, dict[str, int]]:
    """Price × milliseconds of each day of a month and each model."""
    found: dict[str, dict[str, int]] = {}
    query = select(*engine_days.c).where(engine_days.c.day.startswith(month)).order_by(*engine_days.primary_key)
    for row in connection.execute(query):
        models = found.setdefault(row.day, {})
        models[row.model] = models.get(row.model, 0) + row.price * row.milliseconds
    return found


def uptimes(connection: Connection, month: str | None = None) -> list[Uptime]:
    """The rows of a month, or all."""
    query = select(*engine_uptime.c).order_by(*engine_uptime.primary_key)
    if month is not None:
        query = query.where(engine_uptime.c.month == month)
    return [Uptime(**row._mapping) for row in connection.execute(query)]


def limits(connection: Connection) -> dict[str, int]:
    """Every Spend limit by its scope."""
    return {row.scope: row.amount for row in connection.execute(select(*spend_limits.c))}


def limits_on(connection: Connection, model: str) -> dict[str, int]:
    """The Spend limits that a model is under."""
    query = select(*spend_limits.c).where(or_(spend_limits.c.scope == model, spend_limits.c.scope == EVERYTHING))
    return {row.scope: row.amount for row in connection.execute(query)}


def spend_limits_on(model: BindParameter[str]) -> ScalarSelect[int]:
    """How many Spend limits a model is under, for statements that do something else too."""
    under = or_(spend_limits.c.scope == model, spend_limits.c.scope == EVERYTHING)
    return select(func.count()).select_from(spend_limits).where(under).scalar_subquery()


def set_limit(connection: Connection, scope: str, amount: int | None) -> None:
    """Set a Spend limit, or take it away."""
    if amount is None:
        connection.execute(delete(spend_limits).where(spend_limits.c.scope == scope))
        return
    statement = _insert(connection)(spend_limits).values(scope=scope, amount=amount)
    connection.execute(statement.on_conflict_do_update(index_elements=["scope"], set_={"amount": amount}))


def note_warning(
    connection: Connection, scope: str, month: str, amount: int, percent: int, at: datetime
) -> bool:
    """Note a warning. False where it was given before: exactly one of several gets True."""
    values: Mapping[str, object] = {"scope": scope, "month": month, "amount": amount, "percent": percent, "at": at}
    statement = _insert(connection)(spend_warnings).values(values).on_conflict_do_nothing()
    return connection.execute(statement.returning(spend_warnings.c.scope)).one_or_none() is not None


def _insert(connection: Connection) -> type[postgresql.Insert] | type[sqlite.Insert]:
    return postgresql.Insert if connection.dialect.name == "postgresql" else sqlite.Insert
