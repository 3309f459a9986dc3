"""The statements about accounts, invitations and API keys."""
from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, insert, or_, select, update

from frontend.db.records import Account, ApiKey, Invitation, KeyCheck
from frontend.db.tables import accounts, api_keys, invitations
from frontend.db.token_records import LimitOverrides
from frontend.db.token_tables import account_limits, balances

#: The columns of an Account, in its order.
ACCOUNT = (
    accounts.c.id, accounts.c.email, accounts.c.role, accounts.c.created_at, accounts.c.disabled,
    accounts.c.password_hash.is_not(None).label("has_password"),
)
_KEY = (
    api_keys.c.id, api_keys.c.account_id, api_keys.c.name, api_keys.c.prefix, api_keys.c.scopes,
    api_keys.c.created_at, api_keys.c.expires_at, api_keys.c.revoked_at, api_keys.c.last_used_at,
    api_keys.c.replaced_by,
)
# Built once: a key is checked for each request.
_CHECK = (
    select(*_KEY, api_keys.c.sha256, accounts.c.disabled, balances.c.available, account_limits.c.requests_per_minute,
           account_limits.c.active, account_limits.c.waiting)
    .select_from(api_keys).join(accounts, accounts.c.id == api_keys.c.account_id)
    .outerjoin(balances, balances.c.account_id == accounts.c.id)
    .outerjoin(account_limits, account_limits.c.account_id == accounts.c.id)
    .where(api_keys.c.sha256 == bindparam("sha256"))
)


def add_account(connection: Connection, account: Account, password_hash: str | None) -> None:
    """Add an account. Raises sqlalchemy's IntegrityError where the email is taken."""
    connection.execute(insert(accounts).values(
        id=account.id, email=account.email, role=account.role, created_at=account.created_at,
        disabled=account.disabled, password_hash=password_hash,
    ))


def account_of(connection: Connection, email: str) -> Account | None:
    """The account of an email address in its normal form."""
    row = connection.execute(select(*ACCOUNT).where(accounts.c.email == email)).one_or_none()
    return Account(**row._mapping) if row else None


def all_accounts(connection: Connection) -> list[Account]:
    """Every account, oldest first."""
    rows = connection.execute(select(*ACCOUNT).order_by(accounts.c.created_at, accounts.c.id))
    return [Account(**row._mapping) for row in rows]


def set_disabled(connection: Connection, account_id: str, disabled: bool) -> bool:
    """Disable or enable an account. False when it was so before, or is not there."""
    change = update(accounts).where(accounts.c.id == account_id, accounts.c.disabled != disabled)
    return connection.execute(change.values(disabled=disabled)).rowcount == 1


def set_password(connection: Connection, account_id: str, password_hash: str) -> Account | None:
    """Give an account that is not disabled a password. None where there is no such account."""
    change = update(accounts).where(accounts.c.id == account_id, ~accounts.c.disabled)
    row = connection.execute(change.values(password_hash=password_hash).returning(*ACCOUNT)).one_or_none()
    return Account(**row._mapping) if row else None


def account_by_id(connection: Connection, account_id: str) -> Account | None:
    """The account of an id."""
    row = connection.execute(select(*ACCOUNT).where(accounts.c.id == account_id)).one_or_none()
    return Account(**row._mapping) if row else None


def lock_admins(connection: Connection) -> set[str]:
    """The admins that are not disabled, who stay so until the transaction ends."""
    query = select(accounts.c.id).where(accounts.c.role == "admin", ~accounts.c.disabled)
    return set(connection.execute(query.order_by(accounts.c.id).with_for_update()).scalars())


def set_role(connection: Connection, account_id: str, role: str) -> bool:
    """Change what an account may do. False where it was so before, or is not there."""
    change = update(accounts).where(accounts.c.id == account_id, accounts.c.role != role)
    return connection.execute(change.values(role=role)).rowcount == 1


def add_invitation(connection: Connection, invitation: Invitation, sha256: str) -> None:
    """Add an invitation by its token's hash. Those that the account still had expire now."""
    end_invitations(connection, invitation.account_id, invitation.created_at)
    connection.execute(insert(invitations).values(**vars(invitation), sha256=sha256))


def end_invitations(connection: Connection, account_id: str, now: datetime) -> None:
    """Let the invitations that an account has expire now."""
    connection.execute(
        update(invitations).where(invitations.c.account_id == account_id, invitations.c.expires_at > now)
        .values(expires_at=now)
    )


def find_invitation(connection: Connection, sha256: str, now: datetime) -> Invitation | None:
    """The invitation of a token's hash, if it can still be accepted."""
    query = select(invitations.c.id, invitations.c.account_id, invitations.c.created_at, invitations.c.expires_at)
    row = connection.execute(query.where(*_open(sha256, now))).one_or_none()
    return Invitation(**row._mapping) if row else None


def accept_invitation(connection: Connection, sha256: str, now: datetime) -> bool:
    """Use an invitation up. False where another was faster, or it ended meanwhile."""
    change = update(invitations).where(*_open(sha256, now)).values(accepted_at=now)
    return connection.execute(change).rowcount == 1


def _open(sha256: str, now: datetime) -> tuple[ColumnElement[bool], ...]:
    return invitations.c.sha256 == sha256, invitations.c.accepted_at.is_(None), invitations.c.expires_at > now


def add_key(connection: Connection, key: ApiKey, sha256: str) -> None:
    """Add a key by its hash."""
    values = {**vars(key), "scopes": " ".join(sorted(key.scopes)), "sha256": sha256}
    connection.execute(insert(api_keys).values(values))


def find_key(connection: Connection, sha256: str) -> KeyCheck | None:
    """The key of a hash, whatever its state: one indexed lookup."""
    row = connection.execute(_CHECK, {"sha256": sha256}).one_or_none()
    if row is None:
        return None
    limits = LimitOverrides(row.requests_per_minute, row.active, row.waiting)
    return KeyCheck(_key(row), row.sha256, row.disabled, row.available or 0, limits)


def keys_of(connection: Connection, account_id: str | None) -> list[ApiKey]:
    """Every key of an account, or of all, oldest first; revoked ones too."""
    query = select(*_KEY).order_by(api_keys.c.created_at, api_keys.c.id)
    if account_id is not None:
        query = query.where(api_keys.c.account_id == account_id)
    return [_key(row) for row in connection.execute(query)]


def key_of(connection: Connection, key_id: str, account_id: str | None, lock: bool = False) -> ApiKey | None:
    """A key by its id, if it is the account's, or anybody's. With `lock` it stays as it is until the transaction ends.
    """
    query = select(*_KEY).where(api_keys.c.id == key_id)
    if account_id is not None:
        query = query.where(api_keys.c.account_id == account_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return _key(row) if row else None


def revoke(connection: Connection, key_id: str, now: datetime) -> bool:
    """Revoke a key for good. False where it was before: the time of the first revocation stays."""
    change = update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
    return connection.execute(change.values(revoked_at=now)).rowcount == 1


def replace_key(connection: Connection, key_id: str, by: str, expires_at: datetime) -> None:
    """Note which key takes another's place, and when that one expires."""
    connection.execute(
        update(api_keys).where(api_keys.c.id == key_id).values(replaced_by=by, expires_at=expires_at)
    )


def set_last_used(connection: Connection, key_id: str, now: datetime, unless_after: datetime) -> None:
    """Note a use, unless another process noted one since `unless_after`."""
    stale = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at <= unless_after)
    connection.execute(update(api_keys).where(api_keys.c.id == key_id, stale).values(last_used_at=now))


def _key(row: Any) -> ApiKey:
    return ApiKey(row.id, row.account_id, row.name, row.prefix, frozenset(row.scopes.split()), row.created_at,
                  row.expires_at, row.revoked_at, row.last_used_at, row.replaced_by)
