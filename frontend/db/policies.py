"""The statements about models' policies: what an admin has changed of the catalog's."""
from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Float, String, Table, Text, delete, select

from frontend.db.tables import metadata

# A row for each model whose policy is not the catalog's. NULL: this part is.
model_policies = Table(
    "model_policies", metadata,
    Column("model", String(64), primary_key=True),
    Column("warm", String(16)),
    Column("idle_minutes", Float),
    # A JSON list of texts.
    Column("warm_windows", Text),
)


@dataclass(frozen=True)
class PolicyChange:
    """What is changed of a policy; None leaves a part as it is."""

    warm: str | None = None
    idle_minutes: float | None = None
    warm_windows: tuple[str, ...] | None = None


def policies(connection: Connection) -> dict[str, PolicyChange]:
    """What is changed, by model."""
    return {row.model: PolicyChange(row.warm, row.idle_minutes,
                                    None if row.warm_windows is None else tuple(json.loads(row.warm_windows)))
            for row in connection.execute(select(*model_policies.c))}


def set_policy(connection: Connection, model: str, change: PolicyChange) -> None:
    """Change what is not None of a model's policy."""
    before = policies(connection).get(model, PolicyChange())
    windows = before.warm_windows if change.warm_windows is None else change.warm_windows
    delete_policy(connection, model)
    connection.execute(model_policies.insert().values(
        model=model, warm=change.warm or before.warm,
        idle_minutes=before.idle_minutes if change.idle_minutes is None else change.idle_minutes,
        warm_windows=None if windows is None else json.dumps(windows)))


def delete_policy(connection: Connection, model: str) -> None:
    """Make a model's policy the catalog's again."""
    connection.execute(delete(model_policies).where(model_policies.c.model == model))
