"""The audit log: who did what to whom, when and from where. It only grows, and never holds a secret."""
from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection

from frontend.db import Database
from frontend.db import audit as rows
from frontend.db.records import AuditEvent


class Action(StrEnum):
    """Everything that people and admins do, as `object:verb`. What they have the models write is in usage records."""

    ACCOUNT_CREATE = "account:create"
    ACCOUNT_INVITE = "account:invite"
    ACCOUNT_ACCEPT = "account:accept"
    ACCOUNT_DISABLE = "account:disable"
    ACCOUNT_ENABLE = "account:enable"
    ACCOUNT_ROLE = "account:role"
    ACCOUNT_RESET = "account:reset"
    ACCOUNT_PASSWORD = "account:password"
    SESSION_BEGIN = "session:begin"
    SESSION_END = "session:end"
    KEY_CREATE = "key:create"
    KEY_ROTATE = "key:rotate"
    KEY_REVOKE = "key:revoke"
    GRANT_ADD = "grant:add"
    REQUEST_MAKE = "request:make"
    REQUEST_APPROVE = "request:approve"
    REQUEST_REJECT = "request:reject"
    LIMITS_SET = "limits:set"
    SPEND_LIMIT_SET = "spend_limit:set"
    USAGE_EXPORT = "usage:export"
    MODEL_POLICY = "model:policy"
    MODEL_LOAD = "model:load"
    MODEL_UNLOAD = "model:unload"
    JOB_SUBMIT = "job:submit"
    JOB_CANCEL = "job:cancel"
    JOB_RETRY = "job:retry"
    JOB_ERASE = "job:erase"
    FILE_ADD = "file:add"
    FILE_ERASE = "file:erase"
    SAVED_REQUEST_ADD = "saved_request:add"
    SAVED_REQUEST_FORGET = "saved_request:forget"
    TRITON_DRAIN = "triton:drain"
    TRITON_UNDRAIN = "triton:undrain"


@dataclass(frozen=True)
class Actor:
    """Who acts: an account's id, `cli:` and a user of the machine, or `system`; and the address it comes from."""

    name: str
    origin: str


#: What the service does by itself.
SYSTEM = Actor("system", socket.gethostname())


def record(
    connection: Connection, by: Actor, action: Action, subject: str, account_id: str | None,
    details: dict[str, object] | None = None,
) -> None:
    """Add an event to the transaction that does what it tells of, so that there is never one without the other.

    `subject` is the id of what was acted on, `account_id` the account that it belongs to. `details` become JSON.
    """
    rows.add_event(connection, by.name, by.origin, action, subject, account_id, details or {})


def list_events(
    database: Database, *, account_id: str | None = None, actor: str | None = None, action: str | None = None,
    since: datetime | None = None, limit: int = 100,
) -> list[AuditEvent]:
    """The newest `limit` events that fit, oldest first."""
    with database.read() as connection:
        return rows.events(connection, account_id, actor, action, since, limit)
