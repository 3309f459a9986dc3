"""Policies: when a model is to be Warm, as the catalog has it, and as an admin has changed it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from frontend.accounts.audit import Action, Actor, record
from frontend.db import Database
from frontend.db import policies as rows
from frontend.db.policies import PolicyChange
from frontend.errors import InvalidRequest
from frontend.warmth.windows import Window

#: "always": it is Warm whenever it can be; "on_demand": its first request makes it so.
KINDS = ("always", "on_demand")


@dataclass(frozen=True)
class Policy:
    """When a model is to be Warm. `changed`: not all of it is the catalog's."""

    warm: str
    idle_minutes: float
    warm_windows: tuple[str, ...]
    changed: bool = False

    def keeps_warm(self, now: datetime) -> bool:
        """Whether the model is to be Warm now, though nobody asks for it."""
        return self.warm == "always" or any(Window.parse(text).holds(now) for text in self.warm_windows)


def policy_of(warm: str, idle_minutes: float, warm_windows: Sequence[str], change: PolicyChange | None) -> Policy:
    """The catalog's policy with what was changed."""
    if change is None:
        return Policy(warm, idle_minutes, tuple(warm_windows))
    return Policy(
        change.warm or warm,
        idle_minutes if change.idle_minutes is None else change.idle_minutes,
        tuple(warm_windows if change.warm_windows is None else change.warm_windows),
        changed=True)


def changes(database: Database) -> dict[str, PolicyChange]:
    """What was changed of each model's policy."""
    with database.read() as connection:
        return rows.policies(connection)


def set_policy(database: Database, by: Actor, model: str, change: PolicyChange | None) -> None:
    """Change a model's policy: what the change leaves out stays as it is; None makes it the catalog's again.

    Raises InvalidRequest.
    """
    if change is not None:
        if change.warm is not None and change.warm not in KINDS:
            raise InvalidRequest(f"A model is Warm {' or '.join(KINDS)}, not {change.warm!r}.", "warm")
        if change.idle_minutes is not None and not 0 < change.idle_minutes <= 10**6:
            raise InvalidRequest("idle_minutes is a number of minutes above 0.", "idle_minutes")
        try:
            for text in change.warm_windows or ():
                Window.parse(text)
        except ValueError as error:
            raise InvalidRequest(f"{error}.", "warm_windows") from None
    with database.write() as connection:
        if change is None:
            rows.delete_policy(connection, model)
        else:
            rows.set_policy(connection, model, change)
        record(connection, by, Action.MODEL_POLICY, model, None, {} if change is None else {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(change).items() if value is not None})
