"""What can be done with API keys: create, list, rotate, revoke, check.

`owner` is the account whose keys are meant, so that nobody learns of another's: a key of somebody else's is as Unknown
as one that never was. None means all accounts, for admins.
"""
from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta

import structlog

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.caller import Caller
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.keys import NewKey, hash_key, new_key, random_text
from frontend.db import Database
from frontend.db import accounts as rows
from frontend.db.records import Account, ApiKey
from frontend.errors import Unavailable

SCOPES = frozenset({"completions", "jobs", "usage:read"})
#: A key's last use is noted at most this often, so that a request seldom writes.
LAST_USED_EVERY = timedelta(minutes=1)
#: How far ahead a key may expire, and how long a rotated one may work beside its successor.
LONGEST_LIFE, LONGEST_OVERLAP = timedelta(days=36_500), timedelta(days=365)

_log = structlog.get_logger(__name__)


def create_key(
    database: Database, by: Actor, account: Account, name: str, scopes: frozenset[str] = SCOPES,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key; the second value is its secret, which can't be had again. Raises AccountError."""
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise AccountError("A key's name has 1 to 100 characters, all of them visible.")
    if not scopes or scopes - SCOPES:
        raise AccountError(f"A key's scopes are some of {', '.join(sorted(SCOPES))}.")
    now = datetime.now(UTC)
    if expires_at is not None and not timedelta(0) < expires_at - now <= LONGEST_LIFE:
        raise AccountError("A key can't expire in the past, nor in more than a hundred years.")
    new = new_key()
    key = _made(new, account.id, name, scopes, now, expires_at)
    with database.write() as connection:
        rows.add_key(connection, key, new.sha256)
        record(connection, by, Action.KEY_CREATE, key.id, account.id,
               {"name": name, "scopes": sorted(scopes), "expires_at": _written(expires_at)})
    return key, new.secret


def list_keys(database: Database, owner: Account | None = None) -> list[ApiKey]:
    """The keys, expired and revoked ones too, oldest first."""
    with database.read() as connection:
        return rows.keys_of(connection, owner.id if owner else None)


def revoke_key(database: Database, by: Actor, key_id: str, owner: Account | None = None) -> ApiKey:
    """Revoke a key for good: the very next request with it is refused. Raises Unknown.

    A second time changes nothing, and is right too: the key is revoked.
    """
    with database.write() as connection:
        key = _key(rows.key_of(connection, key_id, owner.id if owner else None), key_id)
        if rows.revoke(connection, key.id, datetime.now(UTC)):
            record(connection, by, Action.KEY_REVOKE, key.id, key.account_id, {"name": key.name})
        return _key(rows.key_of(connection, key.id, None), key_id)


def rotate_key(
    database: Database, by: Actor, key_id: str, overlap: timedelta, owner: Account | None = None
) -> tuple[ApiKey, ApiKey, str]:
    """Make a key that takes another's place. The old one works for the overlap too, and then expires.

    The new key has the name and the scopes of the old one and lives as long as that was made for. Returns the old key,
    the new one and its secret, which can't be had again. Raises Unknown, or AccountError for a key that does not work
    any more or was rotated before.
    """
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise AccountError(f"An overlap is of up to {LONGEST_OVERLAP.days} days.")
    now = datetime.now(UTC)
    with database.write() as connection:
        old = _key(rows.key_of(connection, key_id, owner.id if owner else None, lock=True), key_id)
        if old.revoked_at is not None or _expired(old, now):
            raise AccountError(f"{old.id} does not work any more, so nothing can take its place: create a key.")
        if old.replaced_by is not None:
            raise AccountError(f"{old.id} was rotated before: {old.replaced_by} takes its place.")
        lifetime = old.expires_at - old.created_at if old.expires_at else None
        new = new_key()
        key = _made(new, old.account_id, old.name, old.scopes, now, now + lifetime if lifetime else None)
        rows.add_key(connection, key, new.sha256)
        ends = min(now + overlap, old.expires_at) if old.expires_at else now + overlap
        rows.replace_key(connection, old.id, key.id, ends)
        record(connection, by, Action.KEY_ROTATE, old.id, old.account_id,
               {"name": old.name, "new_key": key.id, "old_expires_at": _written(ends)})
        return _key(rows.key_of(connection, old.id, None), old.id), key, new.secret


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
    if found is None or not hmac.compare_digest(found.sha256, sha256):
        return None
    key, now = found.key, datetime.now(UTC)
    if found.disabled or key.revoked_at is not None or _expired(key, now):
        return None
    if key.last_used_at is None or key.last_used_at <= now - LAST_USED_EVERY:
        _note_use(database, key, now)
    return Caller(key.account_id, key.id, key.scopes, found.available_tokens, found.limits)


def _note_use(database: Database, key: ApiKey, now: datetime) -> None:
    try:
        with database.write() as connection:
            rows.set_last_used(connection, key.id, now, now - LAST_USED_EVERY)
    except Unavailable:
        # The key is good; a note that could not be taken is no reason to refuse its request.
        _log.warning("last use of a key not noted", key_id=key.id)


def _made(
    new: NewKey, account_id: str, name: str, scopes: frozenset[str], now: datetime, expires_at: datetime | None
) -> ApiKey:
    return ApiKey(f"key_{random_text(20)}", account_id, name, new.prefix, scopes, now, expires_at, None, None, None)


def _key(found: ApiKey | None, key_id: str) -> ApiKey:
    if found is None:
        raise Unknown(f"There is no key {key_id}.")
    return found


def _expired(key: ApiKey, now: datetime) -> bool:
    return key.expires_at is not None and key.expires_at <= now


def _written(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
