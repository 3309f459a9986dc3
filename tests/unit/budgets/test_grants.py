"""Grants add tokens; what is left of one when its date passes runs out, and nothing else does."""
from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from frontend.accounts.audit import SYSTEM, list_events
from frontend.accounts.first_start import DEMO_TOKENS, ensure_demo_tokens
from frontend.budgets.clamp import Need
from frontend.budgets.expiry import expire_grants, look_at_grants
from frontend.budgets.grants import MOST, give_grant, list_grants
from frontend.budgets.holds import settle, take_hold
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.token_records import Balance
from frontend.errors import BudgetExceeded, InvalidRequest
from tests.unit.budgets.books import check_books, ending, order

SOON = timedelta(hours=1)


def later(database: Database, account: Account, when: timedelta) -> None:
    """Look at the account's Grants as the keeper will after some time."""
    with database.write() as connection:
        look_at_grants(connection, account.id, datetime.now(UTC) + when)


def use(database: Database, account: Account, name: object, tokens: int) -> None:
    hold = take_hold(database, order(account.id, name, Need(tokens - 1, 1, 1)))
    settle(database, hold.id, ending(1))


def test_grants_add_up(database: Database, ada: Account) -> None:
    first = give_grant(database, SYSTEM, ada.id, 100, "one")
    second = give_grant(database, SYSTEM, ada.id, 50, "two")
    assert check_books(database, ada.id) == Balance(150, 150, 0, 0)
    assert list_grants(database, ada.id) == list_grants(database) == [first, second]
    (event, _) = list_events(database, action="grant:add")
    assert (event.subject, event.account_id, event.details["tokens"]) == (first.id, ada.id, 100)


def test_what_can_be_no_grant(database: Database, ada: Account) -> None:
    for amount, note, expires_at in ((0, "", None), (-1, "", None), (MOST + 1, "", None), (1, "x" * 1001, None),
                                     (1, "", datetime.now(UTC))):
        with pytest.raises(InvalidRequest):
            give_grant(database, SYSTEM, ada.id, amount, note, expires_at)
    assert check_books(database, ada.id) == Balance(0, 0, 0, 0)
    assert list_events(database, action="grant:add") == []


def test_what_is_left_runs_out_with_the_date(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for a day", datetime.now(UTC) + SOON)
    give_grant(database, SYSTEM, ada.id, 1000, "for ever")
    use(database, ada, 1, 30)
    later(database, ada, timedelta(0))
    assert check_books(database, ada.id) == Balance(1100, 1070, 0, 30)
    later(database, ada, 2 * SOON)
    assert check_books(database, ada.id) == Balance(1030, 1000, 0, 30)
    day, _ = list_grants(database, ada.id)
    assert (day.spent, day.expired, day.open) == (30, 70, False)


def test_the_grant_that_expires_first_is_spent_first(database: Database, ada: Account) -> None:
    now = datetime.now(UTC)
    give_grant(database, SYSTEM, ada.id, 100, "for ever")
    use(database, ada, 1, 40)  # of the only one there is
    give_grant(database, SYSTEM, ada.id, 100, "two hours", now + 2 * SOON)
    give_grant(database, SYSTEM, ada.id, 100, "one hour", now + SOON)
    use(database, ada, 2, 150)  # all of the last, and half of the one before it
    later(database, ada, 3 * SOON)
    assert [(grant.spent, grant.expired) for grant in list_grants(database, ada.id)] == [(40, 0), (50, 50), (100, 0)]
    assert check_books(database, ada.id) == Balance(250, 60, 0, 190)


def test_what_a_request_holds_when_a_grant_expires_it_may_still_use(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for an hour", datetime.now(UTC) + SOON)
    give_grant(database, SYSTEM, ada.id, 1000, "for ever")
    hold = take_hold(database, order(ada.id, 1, Need(10, 1, 50)))
    later(database, ada, 2 * SOON)
    assert check_books(database, ada.id) == Balance(1060, 1000, 60, 0)
    settle(database, hold.id, ending(20))
    assert check_books(database, ada.id) == Balance(1060, 1030, 0, 30)
    later(database, ada, 2 * SOON)
    assert check_books(database, ada.id) == Balance(1030, 1000, 0, 30)
    assert [grant.open for grant in list_grants(database, ada.id)] == [False, True]


def test_a_request_does_not_get_what_expired_though_no_keeper_has_looked(
    database: Database, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for an hour", datetime.now(UTC) + SOON)
    give_grant(database, SYSTEM, ada.id, 20, "for ever")

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + 2 * SOON

    monkeypatch.setattr("frontend.budgets.holds.datetime", Later)
    assert take_hold(database, order(ada.id, 1, Need(10, 1, 50))).max_tokens == 10
    with pytest.raises(BudgetExceeded):
        take_hold(database, order(ada.id, 2, Need(10, 1, 50)))
    assert check_books(database, ada.id) == Balance(20, 0, 20, 0)


def test_the_keeper_finds_what_expired(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for a moment", datetime.now(UTC) + timedelta(seconds=2))
    expire_grants(database)
    assert check_books(database, ada.id).available == 100
    threading.Event().wait(2.1)
    expire_grants(database)
    expire_grants(database)
    assert check_books(database, ada.id) == Balance(0, 0, 0, 0)


def test_the_demo_gets_its_tokens_once(database: Database, ada: Account) -> None:
    threads = [threading.Thread(target=ensure_demo_tokens, args=(database, ada)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check_books(database, ada.id).granted == DEMO_TOKENS
