"""Who is signed in to the App: sessions that a browser's cookie names, kept as hashes, ended at any time.

A session begins with a password and with a new secret, never with one that the browser had before.
"""
from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.keys import random_text
from frontend.accounts.service import normal_email
from frontend.db import Database
from frontend.db import accounts as account_rows
from frontend.db import sessions as rows
from frontend.db.records import Account, Session
from frontend.errors import Unavailable

#: How long a session lasts, and how long without a request.
LIFE, IDLE = timedelta(days=30), timedelta(days=7)
#: That somebody is there is noted at most this often, so that a page seldom writes.
SEEN_EVERY = timedelta(minutes=5)


@dataclass(frozen=True)
class SignedIn:
    """The person behind a request of a browser."""

    account: Account
    session: Session


def sign_in(database: Database, email: str, password: str, origin: str, agent: str) -> tuple[Account, str] | None:
    """Begin a session; the second value is the secret for the cookie. None where email and password do not fit, or the
    account is disabled: which of these, nobody learns. `origin` is an IP address, `agent` the browser's own name."""
    from frontend.accounts.passwords import hash_password, is_outdated, is_password  # argon2: the API never needs it

    try:
        normal = normal_email(email)
    except AccountError:
        return None
    with database.read() as connection:
        found = rows.password_of(connection, normal)
    account, password_hash = found or (None, None)
    if not is_password(password_hash, password) or account is None or password_hash is None or account.disabled:
        return None
    better = hash_password(password) if is_outdated(password_hash) else None
    now, secret = datetime.now(UTC), random_text(43)
    session = Session(f"sess_{random_text(20)}", account.id, now, now, now + LIFE, origin[:254], agent[:254])
    with database.write() as connection:
        current = rows.password_of(connection, normal)
        if current is None or current[0].disabled or current[1] != password_hash:
            return None  # an admin was faster
        if better:
            rows.replace_hash(connection, account.id, password_hash, better)
        rows.forget_expired(connection, now)
        rows.add_session(connection, session, _sha256(secret))
        record(connection, Actor(account.id, origin), Action.SESSION_BEGIN, session.id, account.id)
    return account, secret


def who(database: Database, secret: str) -> SignedIn | None:
    """The person whose browser sent a secret, if it is still signed in. Nothing is cached, so that the end of a session
    counts from the next request on."""
    if not secret.isascii() or len(secret) != 43:
        return None
    now = datetime.now(UTC)
    with database.read() as connection:
        found = rows.find_session(connection, _sha256(secret))
    if found is None:
        return None
    session, account = found
    if account.disabled or session.expires_at <= now or session.last_seen_at <= now - IDLE:
        return None
    if session.last_seen_at <= now - SEEN_EVERY:
        # A note that can't be taken is no reason to send somebody away.
        with suppress(Unavailable), database.write() as connection:
            rows.see_session(connection, session.id, now)
    return SignedIn(account, session)


def list_sessions(database: Database, account_id: str) -> list[Session]:
    """Where an account is signed in, the newest first."""
    now = datetime.now(UTC)
    with database.read() as connection:
        return [session for session in rows.sessions_of(connection, account_id, now)
                if session.last_seen_at > now - IDLE]


def end_session(database: Database, by: Actor, account_id: str, session_id: str) -> None:
    """Sign out of one session, at once. Raises Unknown."""
    with database.write() as connection:
        if not rows.end_session(connection, session_id, account_id):
            raise Unknown("There is no such session.")
        record(connection, by, Action.SESSION_END, session_id, account_id)


def change_password(database: Database, person: SignedIn, old: str, new: str, origin: str) -> None:
    """Choose another password, which ends all other sessions, and links to choose one. Raises AccountError."""
    from frontend.accounts.passwords import check_choice, hash_password, is_password

    account = person.account
    with database.read() as connection:
        found = rows.password_of(connection, account.email)
    if found is None or not is_password(found[1], old):
        raise AccountError("That is not your password.")
    check_choice(new)
    new_hash = hash_password(new)
    with database.write() as connection:
        if account_rows.set_password(connection, account.id, new_hash) is None:
            raise Unknown("There is no such account.")
        account_rows.end_invitations(connection, account.id, datetime.now(UTC))
        rows.end_sessions(connection, account.id, but=person.session.id)
        record(connection, Actor(account.id, origin), Action.ACCOUNT_PASSWORD, account.id, account.id)


def _sha256(secret: str) -> str:
    """A random secret of that size needs no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()
