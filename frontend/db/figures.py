"""The statements behind the metrics that the database knows, whichever process asks."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, literal_column, select

from frontend.db.spend_tables import engine_uptime
from frontend.db.token_tables import holds, usage_records

#: Price × milliseconds, in millionths of a dollar an hour, is so many times a dollar.
_DOLLAR = 3_600_000 * 1_000_000


@dataclass(frozen=True)
class Figures:
    """Holds by model, and what each model has cost since ever, in dollars."""

    holds_open: Mapping[str, int]
    tokens_held: Mapping[str, int]
    holds_expired: int
    spent: Mapping[str, float]


def figures(connection: Connection) -> Figures:
    """All of them, of one moment."""
    by_model = select(holds.c.model, func.count(), func.sum(holds.c.amount)).group_by(holds.c.model)
    open_holds = connection.execute(by_model).all()
    # Spelled out, not as a parameter: the index holds just these rows.
    expired = select(func.count()).where(usage_records.c.settled_by == literal_column("'keeper'"))
    spent: Counter[str] = Counter()
    for row in connection.execute(select(*engine_uptime.c)):
        spent[row.model] += row.price * row.milliseconds
    return Figures(
        {model: count for model, count, _ in open_holds}, {model: int(amount) for model, _, amount in open_holds},
        connection.execute(expired).scalar_one(), {model: cost / _DOLLAR for model, cost in spent.items()},
    )
