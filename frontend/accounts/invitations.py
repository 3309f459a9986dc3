"""How people come in: an admin invites an email address, and who has the invitation's token chooses the password.

A token is shown once, kept as a hash, good for one use and for some days. The newest one of an account is the only one.
"""
from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import IntegrityError

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.keys import random_text
from frontend.accounts.service import new_account, normal_email
from frontend.db import Database, sessions
from frontend.db import accounts as rows
from frontend.db.records import Account, Invitation

MARK = "strata-invitation-"
#: How long an invitation is good for, unless told otherwise, and at most.
VALID, LONGEST = timedelta(days=7), timedelta(days=365)
#: The same for the reset of a password, which an admin hands over at once.
RESET_VALID = timedelta(days=1)


def invite(
    database: Database, by: Actor, email: str, role: str | None = None, valid: timedelta = VALID
) -> tuple[Account, Invitation, str]:
    """Invite a person: as a new account, a member unless told otherwise, or as one that has no password yet.

    The account is there at once, so that it can be given tokens and keys. The last value is the token, which can't be
    had again. Raises AccountError.
    """
    if not timedelta(0) < valid <= LONGEST:
        raise AccountError(f"An invitation is valid for some time, up to {LONGEST.days} days.")
    now = datetime.now(UTC)
    token = MARK + random_text(43)
    fresh = new_account(email, role or "member", has_password=False)
    try:
        with database.write() as connection:
            account = rows.account_of(connection, fresh.email)
            if account is None:
                account = fresh
                rows.add_account(connection, account, password_hash=None)
            if account.has_password:
                raise AccountError(f"{account.email} has a password already.")
            if account.disabled:
                raise AccountError(f"{account.email} is disabled: enable the account first.")
            if role not in (None, account.role):
                raise AccountError(f"{account.email} has an account already, whose role is {account.role}.")
            invitation = Invitation(f"inv_{random_text(20)}", account.id, now, now + valid)
            rows.add_invitation(connection, invitation, _sha256(token))
            record(connection, by, Action.ACCOUNT_INVITE, invitation.id, account.id, {
                "email": account.email, "role": account.role,
                "expires_at": invitation.expires_at.isoformat(timespec="seconds"),
            })
    except IntegrityError:
        raise AccountError(f"{normal_email(email)} is being invited by somebody else at this moment.") from None
    return account, invitation, token


def reset_password(
    database: Database, by: Actor, account: Account, valid: timedelta = RESET_VALID
) -> tuple[Invitation, str]:
    """Let a person who has a password choose another one, once. The old one works until then.

    The last value is the token, which can't be had again. Raises AccountError.
    """
    now = datetime.now(UTC)
    token = MARK + random_text(43)
    with database.write() as connection:
        account = rows.account_by_id(connection, account.id) or account
        if account.disabled:
            raise AccountError(f"{account.email} is disabled: enable the account first.")
        if not account.has_password:
            raise AccountError(f"{account.email} has no password yet: invite the person.")
        invitation = Invitation(f"inv_{random_text(20)}", account.id, now, now + valid)
        rows.add_invitation(connection, invitation, _sha256(token))
        record(connection, by, Action.ACCOUNT_RESET, invitation.id, account.id,
               {"expires_at": invitation.expires_at.isoformat(timespec="seconds")})
    return invitation, token


def invited(database: Database, token: str) -> Account | None:
    """The account for which a token is good now."""
    with database.read() as connection:
        invitation = rows.find_invitation(connection, _sha256(token), datetime.now(UTC))
        account = rows.account_by_id(connection, invitation.account_id) if invitation else None
    return account if account and not account.disabled else None


def accept(database: Database, token: str, password: str, origin: str) -> Account:
    """Take an invitation, or a reset, once, by choosing a password; the account is signed out everywhere. `origin` is
    where the person comes from, for the audit log.

    Raises Unknown for a token that is wrong, used, replaced or expired, or whose account is disabled, and AccountError
    for a password that can't be chosen; the token is then as good as before.
    """
    from frontend.accounts.passwords import check_choice, hash_password  # argon2: the API itself never needs it

    sha256 = _sha256(token)
    with database.read() as connection:
        invitation = rows.find_invitation(connection, sha256, datetime.now(UTC))
    if invitation is None:
        raise _unknown()
    check_choice(password)
    password_hash = hash_password(password)  # takes a while on purpose: only for those with a token, and outside of SQL
    with database.write() as connection:
        account = None
        if rows.accept_invitation(connection, sha256, datetime.now(UTC)):
            account = rows.set_password(connection, invitation.account_id, password_hash)
            sessions.end_sessions(connection, invitation.account_id)
        if account is None:
            raise _unknown()
        record(connection, Actor(account.id, origin), Action.ACCOUNT_ACCEPT, invitation.id, account.id)
    return account


def _sha256(token: str) -> str:
    """A random token of that size needs no slow hash."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _unknown() -> Unknown:
    return Unknown("This invitation is not valid any more. Ask for a new one.")
