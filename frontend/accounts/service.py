"""What can be done with people and keys: create, list, revoke, check."""
from __future__ import annotations

import hmac
import re
from datetime import UTC, datetime, timedelta

import structlog

from frontend.accounts.caller import Caller
from frontend.accounts.keys import hash_key, new_key, random_text
from frontend.db import Database
from frontend.db import accounts as rows
from frontend.db.records import Account, ApiKey
from frontend.errors import Unavailable

SCOPES = frozenset({"completions", "jobs", "usage:read"})
ROLES = ("member", "admin")
#: A key's last use is noted at most this often, so that a request seldom writes.
LAST_USED_EVERY = timedelta(minutes=1)

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_log = structlog.get_logger(__name__)


class AccountError(Exception):
    """Something about people or keys that can't be done; the message is for the person who tried."""


def create_account(database: Database, email: str, role: str = "member", password: str | None = None) -> Account:
    """Make an account. Without a password nobody can sign in as it. Raises AccountError."""
    if role not in ROLES:
        raise AccountError(f"A role is one of {', '.join(ROLES)}.")
    account = Account(f"acct_{random_text(20)}", _normal(email), role, datetime.now(UTC), disabled=False)
    password_hash = None
    if password is not None:
        from frontend.accounts.passwords import hash_password  # argon2: the API itself never needs it

        password_hash = hash_password(password)
    with database.write() as connection:
        if rows.account_of(connection, account.email):
            raise AccountError(f"There is an account of {account.email} already.")
        rows.add_account(connection, account, password_hash)
    return account


def find_account(database: Database, email: str) -> Account:
    """The account of an email address. Raises AccountError."""
    normal = _normal(email)
    with database.read() as connection:
        account = rows.account_of(connection, normal)
    if account is None:
        raise AccountError(f"There is no account of {normal}.")
    return account


def list_accounts(database: Database) -> list[Account]:
    """Every account, oldest first."""
    with database.read() as connection:
        return rows.all_accounts(connection)


def create_key(
    database: Database, account: Account, name: str, scopes: frozenset[str] = SCOPES, expires_at: datetime | None = None
) -> tuple[ApiKey, str]:
    """Make a key; the second value is its secret, which can't be had again. Raises AccountError."""
    if not name.strip() or len(name) > 100:
        raise AccountError("A key's name has 1 to 100 characters.")
    if not scopes or scopes - SCOPES:
        raise AccountError(f"A key's scopes are some of {', '.join(sorted(SCOPES))}.")
    new = new_key()
    key = ApiKey(f"key_{random_text(20)}", account.id, name, new.prefix, scopes, datetime.now(UTC), expires_at, None,
                 None)
    with database.write() as connection:
        rows.add_key(connection, key, new.sha256)
    return key, new.secret


def list_keys(database: Database, account: Account | None = None) -> list[ApiKey]:
    """The keys of an account, or of all, revoked ones too, oldest first."""
    with database.read() as connection:
        return rows.keys_of(connection, account.id if account else None)


def revoke_key(database: Database, key_id: str) -> None:
    """Revoke a key for good: the very next request with it is refused. Raises AccountError."""
    with database.write() as connection:
        if not rows.revoke(connection, key_id, datetime.now(UTC)):
            raise AccountError(f"There is no key {key_id}.")


def knows_key(database: Database, presented: str) -> bool:
    """Whether this database ever issued that key, revoked or not."""
    sha256 = hash_key(presented)
    if sha256 is None:
        return False
    with database.read() as connection:
        return rows.find_key(connection, sha256) is not None


def check_key(database: Database, presented: str) -> Caller | None:
    """The caller behind a key; None for a malformed, unknown, expired or revoked one, or of a disabled account.

    Nothing is cached, so a revocation counts from the next request on, in every process.
    """
    sha256 = hash_key(presented)
    if sha256 is None:
        return None
    with database.read() as connection:
        found = rows.find_key(connection, sha256)
    now = datetime.now(UTC)
    if found is None or not hmac.compare_digest(found.sha256, sha256):
        return None
    key = found.key
    if found.disabled or key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
        return None
    if key.last_used_at is None or key.last_used_at <= now - LAST_USED_EVERY:
        _note_use(database, key, now)
    return Caller(key.account_id, key.id, key.scopes)


def _note_use(database: Database, key: ApiKey, now: datetime) -> None:
    try:
        with database.write() as connection:
            rows.set_last_used(connection, key.id, now, now - LAST_USED_EVERY)
    except Unavailable:
        # The key is good; a note that could not be taken is no reason to refuse its request.
        _log.warning("last use of a key not noted", key_id=key.id)


def _normal(email: str) -> str:
    normal = email.strip().lower()
    if not _EMAIL.fullmatch(normal) or len(normal) > 254:
        raise AccountError("That is no email address.")
    return normal
