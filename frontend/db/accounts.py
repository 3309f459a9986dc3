"""The statements about accounts and API keys."""
from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, insert, or_, select, update

from frontend.db.records import Account, ApiKey, KeyCheck
from frontend.db.tables import accounts, api_keys

_ACCOUNT = (accounts.c.id, accounts.c.email, accounts.c.role, accounts.c.created_at, accounts.c.disabled)
_KEY = (
    api_keys.c.id, api_keys.c.account_id, api_keys.c.name, api_keys.c.prefix, api_keys.c.scopes,
    api_keys.c.created_at, api_keys.c.expires_at, api_keys.c.revoked_at, api_keys.c.last_used_at,
)
# Built once: a key is checked for each request.
_CHECK = (
    select(*_KEY, api_keys.c.sha256, accounts.c.disabled).join(accounts)
    .where(api_keys.c.sha256 == bindparam("sha256"))
)


def add_account(connection: Connection, account: Account, password_hash: str | None) -> None:
    """Add an account. Raises sqlalchemy's IntegrityError where the email is taken: look first."""
    connection.execute(insert(accounts).values(**vars(account), password_hash=password_hash))


def account_of(connection: Connection, email: str) -> Account | None:
    """The account of an email address in its normal form."""
    row = connection.execute(select(*_ACCOUNT).where(accounts.c.email == email)).one_or_none()
    return Account(**row._mapping) if row else None


def all_accounts(connection: Connection) -> list[Account]:
    """Every account, oldest first."""
    rows = connection.execute(select(*_ACCOUNT).order_by(accounts.c.created_at, accounts.c.id))
    return [Account(**row._mapping) for row in rows]


def add_key(connection: Connection, key: ApiKey, sha256: str) -> None:
    """Add a key by its hash."""
    values = {**vars(key), "scopes": " ".join(sorted(key.scopes)), "sha256": sha256}
    connection.execute(insert(api_keys).values(values))


def find_key(connection: Connection, sha256: str) -> KeyCheck | None:
    """The key of a hash, whatever its state: one indexed lookup."""
    row = connection.execute(_CHECK, {"sha256": sha256}).one_or_none()
    return KeyCheck(_key(row), row.sha256, row.disabled) if row else None


def keys_of(connection: Connection, account_id: str | None) -> list[ApiKey]:
    """Every key of an account, or of all, oldest first; revoked ones too."""
    query = select(*_KEY).order_by(api_keys.c.created_at, api_keys.c.id)
    if account_id is not None:
        query = query.where(api_keys.c.account_id == account_id)
    return [_key(row) for row in connection.execute(query)]


def revoke(connection: Connection, key_id: str, now: datetime) -> bool:
    """Revoke a key for good. False when there is no such key; the time of the first revocation stays."""
    connection.execute(
        update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    return connection.execute(select(api_keys.c.id).where(api_keys.c.id == key_id)).one_or_none() is not None


def set_last_used(connection: Connection, key_id: str, now: datetime, unless_after: datetime) -> None:
    """Note a use, unless another process noted one since `unless_after`."""
    stale = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at <= unless_after)
    connection.execute(update(api_keys).where(api_keys.c.id == key_id, stale).values(last_used_at=now))


def _key(row: Any) -> ApiKey:
    return ApiKey(row.id, row.account_id, row.name, row.prefix, frozenset(row.scopes.split()), row.created_at,
                  row.expires_at, row.revoked_at, row.last_used_at)
