"""People and keys: made, listed, revoked, checked."""
from __future__ import annotations

import statistics
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from sqlalchemy import select, text, update

from frontend.accounts.service import (
    SCOPES,
    AccountError,
    check_key,
    create_account,
    create_key,
    find_account,
    list_accounts,
    list_keys,
    revoke_key,
)
from frontend.db import Database
from frontend.db.tables import accounts, api_keys


def test_an_account_is_found_by_its_email_in_any_case(database: Database) -> None:
    made = create_account(database, " Ada@Example.org ")
    assert (made.email, made.role, made.disabled) == ("ada@example.org", "member", False)
    assert find_account(database, "ADA@example.ORG") == made
    assert list_accounts(database) == [made]


def test_an_email_belongs_to_one_account(database: Database) -> None:
    create_account(database, "ada@example.org")
    with pytest.raises(AccountError, match="already"):
        create_account(database, "ADA@example.org")


@pytest.mark.parametrize("email", ["", "ada", "@", "a b@c", "a@b@c", "x" * 250 + "@b.org"])
def test_what_is_no_email_is_refused(database: Database, email: str) -> None:
    with pytest.raises(AccountError):
        create_account(database, email)


def test_a_password_is_kept_as_a_hash(database: Database) -> None:
    create_account(database, "ada@example.org", "admin", "correct horse")
    with database.read() as connection:
        stored = connection.execute(select(accounts.c.password_hash)).scalar_one()
    assert stored.startswith("$argon2id$")
    assert PasswordHasher().verify(stored, "correct horse")
    with pytest.raises(VerifyMismatchError):
        PasswordHasher().verify(stored, "correct horse ")


def test_a_key_leads_to_its_caller(database: Database) -> None:
    account = create_account(database, "ada@example.org")
    key, secret = create_key(database, account, "tests", frozenset({"jobs", "usage:read"}))
    caller = check_key(database, secret)
    assert caller is not None
    assert (caller.account_id, caller.key_id, caller.scopes) == (account.id, key.id, {"jobs", "usage:read"})
    assert list_keys(database, account)[0].scopes == {"jobs", "usage:read"}
    assert create_key(database, account, "all")[0].scopes == SCOPES


def test_the_secret_is_nowhere_in_the_database(database: Database) -> None:
    _, secret = create_key(database, create_account(database, "ada@example.org"), "tests")
    with database.read() as connection:
        dump = "\n".join(str(row) for table in (accounts, api_keys) for row in connection.execute(select(table)))
    assert secret not in dump
    assert secret[13:] not in dump


def test_expiry(database: Database) -> None:
    account = create_account(database, "ada@example.org")
    now = datetime.now(UTC)
    _, past = create_key(database, account, "past", expires_at=now - timedelta(seconds=1))
    _, future = create_key(database, account, "future", expires_at=now + timedelta(hours=1))
    assert check_key(database, past) is None
    assert check_key(database, future) is not None


def test_revoking_is_for_good_and_counts_at_once(database: Database) -> None:
    key, secret = create_key(database, create_account(database, "ada@example.org"), "tests")
    assert check_key(database, secret) is not None
    revoke_key(database, key.id)
    assert check_key(database, secret) is None
    (first,) = list_keys(database)
    revoke_key(database, key.id)
    assert list_keys(database) == [first]
    with pytest.raises(AccountError):
        revoke_key(database, "key_nothing")


def test_wrong_names_and_scopes_are_refused(database: Database) -> None:
    account = create_account(database, "ada@example.org")
    for name in ("", "  ", "x" * 101):
        with pytest.raises(AccountError):
            create_key(database, account, name)
    for scopes in (frozenset[str](), frozenset({"everything"})):
        with pytest.raises(AccountError):
            create_key(database, account, "x", scopes)


def test_the_last_use_is_noted_once_a_minute(database: Database) -> None:
    key, secret = create_key(database, create_account(database, "ada@example.org"), "tests")
    assert key.last_used_at is None
    check_key(database, secret)
    (used,) = list_keys(database)
    assert used.last_used_at is not None
    check_key(database, secret)
    assert list_keys(database) == [used]
    earlier = datetime.now(UTC) - timedelta(minutes=2)
    with database.write() as connection:
        connection.execute(update(api_keys).values(last_used_at=earlier))
    check_key(database, secret)
    (again,) = list_keys(database)
    assert again.last_used_at is not None
    assert again.last_used_at > earlier


def test_a_key_is_good_also_when_its_use_cannot_be_noted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = create_key(database, create_account(database, "ada@example.org"), "tests")
    monkeypatch.setattr("frontend.db.engine.PATIENCE", 0)
    impatient = Database(database.engine.url.render_as_string(hide_password=False))
    with database.write():  # another writer holds SQLite's only write lock
        assert check_key(impatient, secret) is not None
    impatient.close()
    assert list_keys(database)[0].last_used_at is None


def test_a_disabled_account_has_no_good_keys(database: Database) -> None:
    account = create_account(database, "ada@example.org")
    _, secret = create_key(database, account, "tests")
    with database.write() as connection:
        connection.execute(update(accounts).values(disabled=True))
    assert check_key(database, secret) is None


def test_none_of_the_checks_that_start_after_a_revocation_pass(database: Database) -> None:
    key, secret = create_key(database, create_account(database, "ada@example.org"), "tests")
    revoked, late = threading.Event(), []

    def caller() -> None:
        for _ in range(100):
            after = revoked.is_set()
            if check_key(database, secret) is not None and after:
                late.append(True)

    threads = [threading.Thread(target=caller) for _ in range(8)]
    for thread in threads:
        thread.start()
    revoke_key(database, key.id)
    revoked.set()
    for thread in threads:
        thread.join()
    assert not late


def test_checking_a_key_costs_well_under_a_millisecond_and_one_lookup(database: Database) -> None:
    account = create_account(database, "ada@example.org")
    _, secret = create_key(database, account, "tests")
    for number in range(200):
        create_key(database, account, f"other {number}")
    check_key(database, secret)
    times = []
    for _ in range(500):
        start = time.perf_counter()
        check_key(database, secret)
        times.append(time.perf_counter() - start)
    assert statistics.median(times) < 2e-3  # 0.3 ms on an idle machine
    with database.read() as connection:
        plan = connection.execute(text("EXPLAIN QUERY PLAN SELECT id FROM api_keys WHERE sha256 = 'x'")).all()
    assert "INDEX" in str(plan)


