"""Accounts: made, found, listed, disabled."""
from __future__ import annotations

import threading

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from sqlalchemy import select

from frontend.accounts.api_keys import check_key, create_key
from frontend.accounts.audit import SYSTEM, Action, Actor, list_events
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.service import create_account, find_account, list_accounts, set_disabled
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.tables import accounts


def test_an_account_is_found_by_its_email_in_any_case(database: Database) -> None:
    made = create_account(database, SYSTEM, " Ada@Example.org ")
    assert (made.email, made.role, made.disabled, made.has_password) == ("ada@example.org", "member", False, False)
    assert find_account(database, "ADA@example.ORG") == made
    assert list_accounts(database) == [made]


def test_an_email_belongs_to_one_account_also_when_several_ask_at_once(database: Database) -> None:
    outcomes = []

    def make() -> None:
        try:
            outcomes.append(create_account(database, SYSTEM, "ADA@example.org").email)
        except AccountError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == sorted(["ada@example.org"] + ["There is an account of ada@example.org already."] * 7)
    assert len(list_events(database)) == 1


@pytest.mark.parametrize("email", ["", "ada", "@", "a b@c", "a@b@c", "x" * 250 + "@b.org", "a@b\x00c", "a@b\udcff"])
def test_what_is_no_email_is_refused(database: Database, email: str) -> None:
    with pytest.raises(AccountError):
        create_account(database, SYSTEM, email)
    with pytest.raises(AccountError):
        find_account(database, email)


def test_a_role_is_member_or_admin(database: Database) -> None:
    with pytest.raises(AccountError, match="member, admin"):
        create_account(database, SYSTEM, "ada@example.org", "root")
    assert create_account(database, SYSTEM, "ada@example.org", "admin").role == "admin"


def test_a_password_is_kept_as_a_hash(database: Database) -> None:
    made = create_account(database, SYSTEM, "ada@example.org", "admin", "correct horse")
    assert made.has_password
    assert find_account(database, "ada@example.org") == made
    with database.read() as connection:
        stored = connection.execute(select(accounts.c.password_hash)).scalar_one()
    assert stored.startswith("$argon2id$")
    assert PasswordHasher().verify(stored, "correct horse")
    with pytest.raises(VerifyMismatchError):
        PasswordHasher().verify(stored, "correct horse ")


def test_a_disabled_account_has_no_good_keys_until_it_is_enabled(database: Database, ada: Account) -> None:
    _, secret = create_key(database, SYSTEM, ada, "tests")
    assert set_disabled(database, SYSTEM, ada, True).disabled
    assert check_key(database, secret) is None
    assert not set_disabled(database, SYSTEM, ada, False).disabled
    assert check_key(database, secret) is not None


def test_disabling_twice_is_one_act(database: Database, ada: Account) -> None:
    admin = Actor("acct_admin", "192.0.2.7")
    for disabled in (True, True, False, False):
        set_disabled(database, admin, ada, disabled)
    assert [(event.action, event.actor, event.origin, event.subject) for event in list_events(database)[1:]] == [
        (Action.ACCOUNT_DISABLE, "acct_admin", "192.0.2.7", ada.id),
        (Action.ACCOUNT_ENABLE, "acct_admin", "192.0.2.7", ada.id),
    ]


def test_an_account_that_is_not_there_cannot_be_disabled(database: Database, ada: Account) -> None:
    gone = Account("acct_gone", "gone@example.org", "member", ada.created_at, False, False)
    with pytest.raises(Unknown):
        set_disabled(database, SYSTEM, gone, True)
