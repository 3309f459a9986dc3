"""Invitations: shown once, used once, and good for some days."""
from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select, update

from frontend.accounts.audit import SYSTEM, Action, list_events
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.invitations import accept, invite
from frontend.accounts.service import create_account, find_account, list_accounts, set_disabled
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.tables import accounts, audit_events, invitations

FROM = "192.0.2.7"


def password_hash(database: Database, account: Account) -> str | None:
    with database.read() as connection:
        stored: str | None = connection.execute(
            select(accounts.c.password_hash).where(accounts.c.id == account.id)).scalar_one()
    return stored


def test_who_is_invited_chooses_a_password(database: Database) -> None:
    account, invitation, token = invite(database, SYSTEM, "Ada@example.org", "admin", timedelta(days=2))
    assert (account.email, account.role, account.has_password) == ("ada@example.org", "admin", False)
    assert invitation.expires_at - invitation.created_at == timedelta(days=2)
    assert find_account(database, "ada@example.org") == account

    accepted = accept(database, token, "correct horse", FROM)
    assert accepted.has_password
    assert find_account(database, "ada@example.org") == accepted
    assert PasswordHasher().verify(password_hash(database, account) or "", "correct horse")
    invited, done = list_events(database, account_id=account.id)
    assert (invited.action, invited.actor, invited.subject) == (Action.ACCOUNT_INVITE, "system", invitation.id)
    assert (done.action, done.actor, done.origin) == (Action.ACCOUNT_ACCEPT, account.id, FROM)


def test_neither_token_nor_password_is_in_the_database(database: Database) -> None:
    _, _, token = invite(database, SYSTEM, "ada@example.org")
    accept(database, token, "correct horse", FROM)
    with database.read() as connection:
        dump = "\n".join(str(row) for table in (accounts, invitations, audit_events)
                         for row in connection.execute(select(table)))
    assert token[-43:] not in dump
    assert "correct horse" not in dump


def test_a_token_is_used_once(database: Database) -> None:
    account, _, token = invite(database, SYSTEM, "ada@example.org")
    accept(database, token, "correct horse", FROM)
    chosen = password_hash(database, account)
    with pytest.raises(Unknown):
        accept(database, token, "battery staple", FROM)
    assert password_hash(database, account) == chosen


def test_of_several_who_accept_at_once_one_succeeds(database: Database) -> None:
    _, _, token = invite(database, SYSTEM, "ada@example.org")
    outcomes = []

    def take(number: int) -> None:
        try:
            outcomes.append(accept(database, token, f"password {number}", FROM).email)
        except Unknown:
            outcomes.append("refused")

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["ada@example.org", "refused", "refused", "refused"]
    assert [event.action for event in list_events(database)] == [Action.ACCOUNT_INVITE, Action.ACCOUNT_ACCEPT]


def test_a_token_expires(database: Database) -> None:
    _, _, token = invite(database, SYSTEM, "ada@example.org")
    with database.write() as connection:
        connection.execute(update(invitations).values(expires_at=datetime.now(UTC)))
    with pytest.raises(Unknown):
        accept(database, token, "correct horse", FROM)


@pytest.mark.parametrize("token", ["", "strata-invitation-", "x", "\udcff", "strata-invitation-" + "0" * 43])
def test_what_is_no_token_is_refused(database: Database, token: str) -> None:
    invite(database, SYSTEM, "ada@example.org")
    with pytest.raises(Unknown):
        accept(database, token, "correct horse", FROM)


def test_a_new_token_takes_the_old_ones_place(database: Database) -> None:
    first, _, old = invite(database, SYSTEM, "ada@example.org", "admin")
    second, _, new = invite(database, SYSTEM, "ada@example.org")
    assert second == first
    assert len(list_accounts(database)) == 1
    with pytest.raises(Unknown):
        accept(database, old, "correct horse", FROM)
    assert accept(database, new, "correct horse", FROM).role == "admin"


def test_an_account_without_a_password_can_be_invited(database: Database) -> None:
    made = create_account(database, SYSTEM, "ada@example.org")
    account, _, _ = invite(database, SYSTEM, "ada@example.org")
    assert account == made


def test_who_has_a_password_is_not_invited(database: Database) -> None:
    create_account(database, SYSTEM, "ada@example.org", password="correct horse")
    with pytest.raises(AccountError, match="password already"):
        invite(database, SYSTEM, "ada@example.org")


def test_an_invitation_does_not_change_a_role(database: Database) -> None:
    create_account(database, SYSTEM, "ada@example.org")
    with pytest.raises(AccountError, match="role is member"):
        invite(database, SYSTEM, "ada@example.org", "admin")
    with pytest.raises(AccountError, match="role is one of"):
        invite(database, SYSTEM, "eve@example.org", "root")
    for valid in (timedelta(0), timedelta.max):
        with pytest.raises(AccountError, match="some time"):
            invite(database, SYSTEM, "eve@example.org", valid=valid)


def test_a_disabled_account_cannot_come_in(database: Database) -> None:
    account, _, token = invite(database, SYSTEM, "ada@example.org")
    set_disabled(database, SYSTEM, account, True)
    with pytest.raises(Unknown):
        accept(database, token, "correct horse", FROM)
    with pytest.raises(AccountError, match="disabled"):
        invite(database, SYSTEM, "ada@example.org")
    set_disabled(database, SYSTEM, account, False)
    assert accept(database, token, "correct horse", FROM).has_password


@pytest.mark.parametrize("password", ["", "1234567", "x" * 1025])
def test_a_password_that_cannot_be_chosen_leaves_the_token_good(database: Database, password: str) -> None:
    _, _, token = invite(database, SYSTEM, "ada@example.org")
    with pytest.raises(AccountError, match="8 to 1024"):
        accept(database, token, password, FROM)
    assert accept(database, token, "12345678", FROM).has_password


def test_one_password_written_in_two_ways_is_one_password(database: Database) -> None:
    account, _, token = invite(database, SYSTEM, "ada@example.org")
    accept(database, token, "cafe\u0301 au lait", FROM)
    assert PasswordHasher().verify(password_hash(database, account) or "", "café au lait")
