"""Grants: the only way by which an account gets tokens."""
from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.keys import random_text
from frontend.budgets.expiry import look_at_grants
from frontend.db import Database, balances
from frontend.db import grants as rows
from frontend.db.token_records import Grant
from frontend.errors import InvalidRequest

#: The most tokens of one Grant; more would be a typing error, and a thousand of these still add up in 64 bits.
MOST = 10**15
MAX_NOTE = 1000


def give_grant(
    database: Database, by: Actor, account_id: str, amount: int, note: str, expires_at: datetime | None = None
) -> Grant:
    """Give an account tokens. Raises InvalidRequest for an amount, a note or a date that can't be."""
    with database.write() as connection:
        return add_grant(connection, by, account_id, amount, note, expires_at)


def add_grant(
    connection: Connection, by: Actor, account_id: str, amount: int, note: str, expires_at: datetime | None = None
) -> Grant:
    """`give_grant` inside a transaction of the caller's."""
    now = datetime.now(UTC)
    if not 1 <= amount <= MOST:
        raise InvalidRequest(f"A Grant is of 1 to {MOST} tokens.", "amount")
    if len(note) > MAX_NOTE:
        raise InvalidRequest(f"A Grant's note has at most {MAX_NOTE} characters.", "note")
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("A Grant's expiry lies in the future.", "expires_at")
    grant = Grant(f"grant_{random_text(20)}", account_id, amount, note, by.name, now, expires_at, 0, 0, open=True)
    rows.make_balance(connection, account_id)
    look_at_grants(connection, account_id, now)  # charges so far belong to the Grants so far
    rows.add_grant(connection, grant)
    rows.add_granted(connection, account_id, amount)
    balances.add_entry(connection, account_id, now, "grant", amount, grant.id)
    look_at_grants(connection, account_id, now)  # notes when this one expires
    record(connection, by, Action.GRANT_ADD, grant.id, account_id, {
        "tokens": amount, "note": note, "expires_at": expires_at.isoformat() if expires_at else None})
    return grant


def give_first_grant(database: Database, by: Actor, account_id: str, amount: int, note: str) -> None:
    """`give_grant`, unless the account ever had one; also where several try at once."""
    with database.write() as connection:
        rows.make_balance(connection, account_id)
        balances.lock_balance(connection, account_id)
        if not rows.grants_of(connection, account_id):
            add_grant(connection, by, account_id, amount, note)


def list_grants(database: Database, account_id: str | None = None) -> list[Grant]:
    """The Grants of an account, or all, oldest first."""
    with database.read() as connection:
        return rows.grants_of(connection, account_id)
