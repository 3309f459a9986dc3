"""The statements behind the metrics that the database knows, whichever process asks."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, func, literal_column, select

from frontend.db.spend_tables import engine_uptime, spend_limits
from frontend.db.token_tables import holds, usage_records

#: The scope of what is spent on all models together.
EVERYTHING = "*"
#: Price × milliseconds, in millionths of a dollar an hour, is so many times a dollar.
_DOLLAR = 3_600_000 * 1_000_000


@dataclass(frozen=True)
class Figures:
    """Holds by model; what was spent, in dollars: ever by model, this month by scope, and the limits by scope."""

    holds_open: Mapping[str, int]
    tokens_held: Mapping[str, int]
    holds_expired: int
    spent: Mapping[str, float]
    spent_this_month: Mapping[str, float]
    limits: Mapping[str, float]


def figures(connection: Connection) -> Figures:
    """All of them, of one moment."""
    by_model = select(holds.c.model, func.count(), func.sum(holds.c.amount)).group_by(holds.c.model)
    open_holds = connection.execute(by_model).all()
    # Spelled out, not as a parameter: the index holds just these rows.
    expired = select(func.count()).where(usage_records.c.settled_by == literal_column("'keeper'"))
    month = datetime.now(UTC).strftime("%Y-%m")
    spent: Counter[str] = Counter()
    this_month: Counter[str] = Counter({EVERYTHING: 0})
    for row in connection.execute(select(*engine_uptime.c)):
        cost = row.price * row.milliseconds
        spent[row.model] += cost
        this_month[row.model] += 0
        if row.month == month:
            this_month[row.model] += cost
            this_month[EVERYTHING] += cost
    limits = connection.execute(select(spend_limits.c.scope, spend_limits.c.amount))
    return Figures(
        {model: count for model, count, _ in open_holds}, {model: int(amount) for model, _, amount in open_holds},
        connection.execute(expired).scalar_one(),
        _dollars(spent), _dollars(this_month), {scope: amount / 1_000_000 for scope, amount in limits},
    )


def _dollars(costs: Mapping[str, int]) -> dict[str, float]:
    return {scope: cost / _DOLLAR for scope, cost in costs.items()}
