"""The statements about who is signed in, and about passwords."""
from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from frontend.db.accounts import ACCOUNT
from frontend.db.records import Account, Session
from frontend.db.tables import accounts
from frontend.db.web_tables import sessions

_SESSION = (sessions.c.id, sessions.c.account_id, sessions.c.created_at, sessions.c.last_seen_at,
            sessions.c.expires_at, sessions.c.origin, sessions.c.agent)


def password_of(connection: Connection, email: str) -> tuple[Account, str | None] | None:
    """The account of an email address in its normal form, and its password's hash."""
    query = select(*ACCOUNT, accounts.c.password_hash).where(accounts.c.email == email)
    row = connection.execute(query).one_or_none()
    return (Account(*row[:-1]), row.password_hash) if row else None


def replace_hash(connection: Connection, account_id: str, old: str, new: str) -> None:
    """Store another hash of the same password, unless the password was changed meanwhile."""
    connection.execute(update(accounts).where(accounts.c.id == account_id, accounts.c.password_hash == old)
                       .values(password_hash=new))


def add_session(connection: Connection, session: Session, sha256: str) -> None:
    """Note that somebody signed in."""
    connection.execute(insert(sessions).values(**vars(session), sha256=sha256))


def find_session(connection: Connection, sha256: str) -> tuple[Session, Account] | None:
    """The session of a cookie's hash, with its account, whatever their states."""
    query = (select(*_SESSION, *(column.label(f"account_{column.name}") for column in ACCOUNT))
             .join(accounts, accounts.c.id == sessions.c.account_id).where(sessions.c.sha256 == sha256))
    row = connection.execute(query).one_or_none()
    return (Session(*row[:len(_SESSION)]), Account(*row[len(_SESSION):])) if row else None


def sessions_of(connection: Connection, account_id: str, now: datetime) -> list[Session]:
    """Where an account is signed in, the newest first."""
    query = select(*_SESSION).where(sessions.c.account_id == account_id, sessions.c.expires_at > now)
    return [Session(*row) for row in connection.execute(query.order_by(sessions.c.created_at.desc(), sessions.c.id))]


def see_session(connection: Connection, session_id: str, now: datetime) -> None:
    """Note that somebody is there."""
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(last_seen_at=now))


def end_session(connection: Connection, session_id: str, account_id: str) -> bool:
    """Sign out. False where the account has no such session."""
    statement = delete(sessions).where(sessions.c.id == session_id, sessions.c.account_id == account_id)
    return connection.execute(statement).rowcount == 1


def end_sessions(connection: Connection, account_id: str, but: str | None = None) -> int:
    """Sign an account out everywhere, `but` in one session; how many ended."""
    return connection.execute(
        delete(sessions).where(sessions.c.account_id == account_id, sessions.c.id != (but or ""))).rowcount


def forget_expired(connection: Connection, now: datetime) -> None:
    """Remove sessions that nobody can use any more."""
    connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
