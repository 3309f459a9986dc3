"""Which Grant a charge comes out of, and what runs out when a Grant's date passes.

Tokens come out of the Grant that expires first; those that never expire are last. Nobody needs to know that while
requests run: charges are put down to Grants when one is added or expires, which is exact, since in between the order
of the Grants does not change. What requests hold when a Grant expires they may still use.
"""
from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Connection

from frontend.db import Database, balances
from frontend.db import grants as rows
from frontend.db.token_records import Grant

_NEVER = datetime.max.replace(tzinfo=UTC)


def look_at_grants(connection: Connection, account_id: str, now: datetime) -> None:
    """Put charges down to Grants, and take away what expired. Locks the balance, which must exist."""
    locked = balances.lock_balance(connection, account_id)
    if locked is None:
        raise LookupError(account_id)
    balance, next_expiry = locked
    charged = balance.charged - rows.spent_by_grants(connection, account_id)
    held, lost, coming = balance.held, 0, []
    for grant in sorted(rows.grants_of(connection, account_id, only_open=True), key=_order):
        after, charged, held = _after(grant, charged, held, now)
        if after != grant:
            rows.update_grant(connection, after.id, after.spent, after.expired, after.open)
        if after.expired > grant.expired:
            expired = after.expired - grant.expired
            lost += expired
            balances.add_entry(connection, account_id, now, "expiry", -expired, grant.id)
        if after.open and after.expires_at is not None and after.expires_at > now:
            coming.append(after.expires_at)
    if lost:
        rows.add_granted(connection, account_id, -lost)
    if min(coming, default=None) != next_expiry:
        rows.set_next_expiry(connection, account_id, min(coming, default=None))


def expire_grants(database: Database) -> None:
    """Take away what expired anywhere. For the keeper; a request looks at its own account by itself."""
    now = datetime.now(UTC)
    with database.read() as connection:
        accounts = rows.accounts_with_expired_grants(connection, now)
    for account_id in accounts:
        with database.write() as connection:
            look_at_grants(connection, account_id, now)


def _after(grant: Grant, charged: int, held: int, now: datetime) -> tuple[Grant, int, int]:
    """A Grant once it has borne its part of what is charged and held, and what is left of those two for others."""
    spent = min(charged, grant.amount - grant.spent - grant.expired)
    left = grant.amount - grant.spent - spent - grant.expired
    covered = min(held, left)
    expired = left - covered if grant.expires_at is not None and grant.expires_at <= now else 0
    after = replace(grant, spent=grant.spent + spent, expired=grant.expired + expired, open=left > expired)
    return after, charged - spent, held - covered


def _order(grant: Grant) -> tuple[datetime, datetime, str]:
    return grant.expires_at or _NEVER, grant.given_at, grant.id
