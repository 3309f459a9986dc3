"""The statements about the audit log: add and read. The database refuses others."""
from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import Connection, insert, select

from frontend.db.records import AuditEvent
from frontend.db.tables import audit_events


def add_event(
    connection: Connection, actor: str, origin: str, action: str, subject: str, account_id: str | None,
    details: Mapping[str, object],
) -> None:
    """Add an event of now."""
    connection.execute(insert(audit_events).values(
        at=datetime.now(UTC), actor=actor[:254], origin=origin[:254], action=action, subject=subject,
        account_id=account_id, details=json.dumps(details, sort_keys=True),
    ))


def events(
    connection: Connection, account_id: str | None, actor: str | None, action: str | None, since: datetime | None,
    limit: int,
) -> list[AuditEvent]:
    """The newest `limit` events that fit every condition given, oldest first."""
    query = select(audit_events).order_by(audit_events.c.id.desc()).limit(limit)
    for column, wanted in ((audit_events.c.account_id, account_id), (audit_events.c.actor, actor),
                           (audit_events.c.action, action)):
        if wanted is not None:
            query = query.where(column == wanted)
    if since is not None:
        query = query.where(audit_events.c.at >= since)
    found = [AuditEvent(row.id, row.at, row.actor, row.origin, row.action, row.subject, row.account_id,
                        json.loads(row.details)) for row in connection.execute(query)]
    return found[::-1]
