"""A request for more tokens is decided once, whoever tries at the same time."""
from __future__ import annotations

import threading

import pytest

from frontend.accounts.audit import SYSTEM, list_events
from frontend.budgets.grants import list_grants
from frontend.budgets.token_requests import approve_request, ask_for_tokens, list_requests, reject_request
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.token_records import Balance, Grant
from frontend.errors import Conflict, InvalidRequest, NotFound
from tests.unit.budgets.books import check_books


def test_approving_gives_a_grant(database: Database, ada: Account) -> None:
    asked = ask_for_tokens(database, SYSTEM, ada.id, 500, "a paper on induction heads")
    assert list_requests(database, ada.id, "open") == [asked]
    grant = approve_request(database, SYSTEM, asked.id)
    assert (grant.amount, grant.note) == (500, asked.reason)
    (decided,) = list_requests(database)
    assert (decided.status, decided.grant_id, decided.decided_by) == ("approved", grant.id, "system")
    assert check_books(database, ada.id) == Balance(500, 500, 0, 0)
    assert [event.action for event in list_events(database, account_id=ada.id)][-3:] == [
        "request:make", "grant:add", "request:approve"]


def test_an_admin_may_give_another_amount(database: Database, ada: Account) -> None:
    asked = ask_for_tokens(database, SYSTEM, ada.id, 500, "much")
    assert approve_request(database, SYSTEM, asked.id, amount=50, note="start with this").amount == 50


def test_rejecting_gives_nothing_and_says_why(database: Database, ada: Account) -> None:
    asked = ask_for_tokens(database, SYSTEM, ada.id, 500, "because")
    with pytest.raises(InvalidRequest):
        reject_request(database, SYSTEM, asked.id, " ")
    reject_request(database, SYSTEM, asked.id, "say what for")
    (decided,) = list_requests(database, status="rejected")
    assert (decided.note, decided.grant_id) == ("say what for", None)
    with pytest.raises(Conflict):
        approve_request(database, SYSTEM, asked.id)
    assert check_books(database, ada.id).granted == 0


def test_a_grant_approved_twice_at_once_is_given_once(database: Database, ada: Account) -> None:
    asked = ask_for_tokens(database, SYSTEM, ada.id, 500, "much")
    together = threading.Barrier(6)
    outcomes: list[Grant | Conflict] = []

    def approve() -> None:
        together.wait()
        try:
            outcomes.append(approve_request(database, SYSTEM, asked.id))
        except Conflict as conflict:
            outcomes.append(conflict)

    threads = [threading.Thread(target=approve) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    conflicts = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
    assert [conflict.status for conflict in conflicts] == [409] * 5
    assert len(list_grants(database, ada.id)) == 1
    assert check_books(database, ada.id) == Balance(500, 500, 0, 0)


def test_what_is_refused(database: Database, ada: Account) -> None:
    for amount, reason in ((0, "x"), (5, ""), (5, "x" * 2001)):
        with pytest.raises(InvalidRequest):
            ask_for_tokens(database, SYSTEM, ada.id, amount, reason)
    with pytest.raises(NotFound):
        approve_request(database, SYSTEM, "ask_nothing")
    with pytest.raises(NotFound):
        reject_request(database, SYSTEM, "ask_nothing", "no")
