"""What can be done with accounts: make, find, list, disable. An act and its line in the audit log are one transaction.
"""
from __future__ import annotations

import re
from datetime import UTC, datetime

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.keys import random_text
from frontend.db import Database, sessions
from frontend.db import accounts as rows
from frontend.db.records import Account

ROLES = ("member", "admin")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


def create_account(
    database: Database, by: Actor, email: str, role: str = "member", password: str | None = None
) -> Account:
    """Make an account. Without a password nobody can sign in as it. Raises AccountError."""
    account = new_account(email, role, has_password=password is not None)
    password_hash = None
    if password is not None:
        from frontend.accounts.passwords import hash_password  # argon2: the API itself never needs it

        password_hash = hash_password(password)
    try:
        with database.write() as connection:
            rows.add_account(connection, account, password_hash)
            record(connection, by, Action.ACCOUNT_CREATE, account.id, account.id,
                   {"email": account.email, "role": role})
    except IntegrityError:
        raise AccountError(f"There is an account of {account.email} already.") from None
    return account


def new_account(email: str, role: str, has_password: bool) -> Account:
    """An account that is not in the database yet. Raises AccountError for what is no email address or role."""
    if role not in ROLES:
        raise AccountError(f"A role is one of {', '.join(ROLES)}.")
    return Account(f"acct_{random_text(20)}", normal_email(email), role, datetime.now(UTC), False, has_password)


def find_account(database: Database, email: str) -> Account:
    """The account of an email address. Raises Unknown."""
    normal = normal_email(email)
    with database.read() as connection:
        account = rows.account_of(connection, normal)
    if account is None:
        raise Unknown(f"There is no account of {normal}.")
    return account


def account_by_id(database: Database, account_id: str) -> Account:
    """The account of an id. Raises Unknown."""
    with database.read() as connection:
        account = rows.account_by_id(connection, account_id)
    if account is None:
        raise Unknown("There is no such account.")
    return account


def list_accounts(database: Database) -> list[Account]:
    """Every account, oldest first."""
    with database.read() as connection:
        return rows.all_accounts(connection)


def set_disabled(database: Database, by: Actor, account: Account, disabled: bool) -> Account:
    """Shut an account out, or let it in again. Its keys and invitations are good for nothing meanwhile, from the next
    request on, and are what they were once it is enabled; it is signed out everywhere. The account as it now is.

    Raises AccountError for the last admin who could let it in again.
    """
    with database.write() as connection:
        if disabled:
            _leave_an_admin(connection, account)
            sessions.end_sessions(connection, account.id)
        if rows.set_disabled(connection, account.id, disabled):
            action = Action.ACCOUNT_DISABLE if disabled else Action.ACCOUNT_ENABLE
            record(connection, by, action, account.id, account.id)
        changed = rows.account_of(connection, account.email)
    if changed is None:
        raise Unknown(f"There is no account of {account.email}.")
    return changed


def set_role(database: Database, by: Actor, account: Account, role: str) -> Account:
    """Change what an account may do. The account as it now is. Raises AccountError for the last admin."""
    if role not in ROLES:
        raise AccountError(f"A role is one of {', '.join(ROLES)}.")
    with database.write() as connection:
        if role != "admin":
            _leave_an_admin(connection, account)
        if rows.set_role(connection, account.id, role):
            record(connection, by, Action.ACCOUNT_ROLE, account.id, account.id, {"role": role})
        changed = rows.account_by_id(connection, account.id)
    if changed is None:
        raise Unknown(f"There is no account of {account.email}.")
    return changed


def _leave_an_admin(connection: Connection, account: Account) -> None:
    if rows.lock_admins(connection) == {account.id}:
        raise AccountError(f"{account.email} is the only admin: make somebody else one first.")


def normal_email(email: str) -> str:
    """An email address as accounts have it. Raises AccountError for what is none."""
    normal = email.strip().lower()
    if not _EMAIL.fullmatch(normal) or not normal.isprintable() or len(normal) > 254:
        raise AccountError("That is no email address.")
    return normal
