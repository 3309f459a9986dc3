"""What admins want of models and Tritons: the wish and its line in the audit log, for the commands and the App."""
from __future__ import annotations

from datetime import UTC, datetime

from frontend.accounts.audit import Action, Actor, record
from frontend.db import Database, drains
from frontend.errors import InvalidRequest
from frontend.warmth.policies import Policy
from frontend.warmth.records import Records


def wish(database: Database, records: Records, by: Actor, model: str, wanted: str, policy: Policy) -> None:
    """Ask the keeper to "load" a model, or to "unload" it.

    Raises InvalidRequest where its policy forbids that, or redis's errors.
    """
    if wanted == "unload" and policy.keeps_warm(datetime.now(UTC)):
        raise InvalidRequest(f"Its policy keeps {model} Warm now, so it would be loaded again: change it first, as "
                             f"with: strata models policy {model} --warm on_demand --no-windows", "wish")
    action = Action.MODEL_LOAD if wanted == "load" else Action.MODEL_UNLOAD
    with database.write() as connection:
        record(connection, by, action, model, None)
        records.ask(model, wanted)


def drain(database: Database, records: Records, by: Actor, triton: str, drained: bool) -> None:
    """Send no new requests to a Triton, or send them again.

    Raises redis's errors; then it is written down nevertheless, and the keeper tells Redis.
    """
    with database.write() as connection:
        record(connection, by, Action.TRITON_DRAIN if drained else Action.TRITON_UNDRAIN, triton, None)
        drains.set_drained(connection, triton, drained)
    records.drain(triton, drained)
