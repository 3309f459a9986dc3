"""At the Spend limit there is no new work; near it there is one warning."""
from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from frontend.accounts.audit import SYSTEM, list_events
from frontend.accounts.service import create_account
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import take_hold
from frontend.db import Database
from frontend.db import spend as rows
from frontend.db.token_records import Uptime
from frontend.errors import InvalidRequest, SpendCap
from frontend.spend.limits import EVERYTHING, Spend, is_paused, month_of, set_spend_limit, show_spend, warn
from tests.unit.budgets.books import check_books, order

HOUR = 3_600_000


def run_up(database: Database, model: str, hours: float, month: str | None = None) -> None:
    """Have an engine of 3 dollars an hour have been up."""
    with database.write() as connection:
        rows.add_uptime(connection, Uptime(model, month or month_of(datetime.now(UTC)), 3_000_000, round(hours * HOUR)))


def test_what_was_spent(database: Database) -> None:
    run_up(database, "llama-8b", 1.5)
    run_up(database, "llama-8b", 0.5)
    run_up(database, "llama-70b", 1)
    run_up(database, "llama-8b", 100, "2020-01")
    set_spend_limit(database, SYSTEM, EVERYTHING, 1000)
    month = month_of(datetime.now(UTC))
    assert show_spend(database) == [
        Spend("llama-70b", month, 1, 3, None), Spend("llama-8b", month, 2, 6, None), Spend("*", month, 3, 9, 1000)]
    assert show_spend(database, "2020-01")[0] == Spend("llama-8b", "2020-01", 100, 300, None)


@pytest.mark.parametrize("scope", [EVERYTHING, "llama-8b"])
def test_at_the_limit_new_work_is_paused_and_nothing_is_held(database: Database, scope: str) -> None:
    account = create_account(database, SYSTEM, "ada@example.org")
    give_grant(database, SYSTEM, account.id, 1000, "")
    set_spend_limit(database, SYSTEM, scope, 6)
    run_up(database, "llama-8b", 1.999)
    take_hold(database, order(account.id, 1, Need(1, 1, 1), "llama-8b"))
    assert not is_paused(database, "llama-8b")
    run_up(database, "llama-8b", 0.001)
    assert is_paused(database, "llama-8b")
    with pytest.raises(SpendCap) as refused:
        take_hold(database, order(account.id, 2, Need(1, 1, 1), "llama-8b"))
    assert refused.value.headers == {"x-should-retry": "false"}
    assert check_books(database, account.id).held == 2
    assert is_paused(database, "llama-70b") == (scope == EVERYTHING)
    set_spend_limit(database, SYSTEM, scope, 7)
    take_hold(database, order(account.id, 3, Need(1, 1, 1), "llama-8b"))
    set_spend_limit(database, SYSTEM, scope, None)
    take_hold(database, order(account.id, 4, Need(1, 1, 1), "llama-8b"))


def test_a_limit_of_nothing_pauses_at_once(database: Database) -> None:
    set_spend_limit(database, SYSTEM, EVERYTHING, 0)
    assert is_paused(database, "llama-8b")


def test_the_next_month_begins_at_nothing(database: Database) -> None:
    set_spend_limit(database, SYSTEM, EVERYTHING, 6)
    run_up(database, "llama-8b", 100, "2020-01")
    assert not is_paused(database, "llama-8b")


def test_one_warning_at_80_percent(database: Database) -> None:
    set_spend_limit(database, SYSTEM, EVERYTHING, 30)
    set_spend_limit(database, SYSTEM, "llama-70b", 1)
    run_up(database, "llama-8b", 7.999)
    assert warn(database) == []
    run_up(database, "llama-8b", 0.001)
    assert [(spend.scope, spend.dollars, spend.limit) for spend in warn(database)] == [("*", 24, 30)]
    assert warn(database) == []
    run_up(database, "llama-8b", 2)
    assert warn(database) == []
    set_spend_limit(database, SYSTEM, EVERYTHING, 36)
    assert len(warn(database)) == 1


def test_several_keepers_give_one_warning(database: Database) -> None:
    set_spend_limit(database, SYSTEM, EVERYTHING, 1)
    run_up(database, "llama-8b", 1)
    together, given = threading.Barrier(4), []

    def keeper() -> None:
        together.wait()
        given.extend(warn(database))

    threads = [threading.Thread(target=keeper) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 1


def test_setting_a_limit_is_in_the_audit_log(database: Database) -> None:
    set_spend_limit(database, SYSTEM, "llama-8b", 12.5)
    (event,) = list_events(database)
    assert (event.action, event.subject, event.details) == ("spend_limit:set", "llama-8b", {"dollars": 12.5})


@pytest.mark.parametrize("dollars", [-1, 10**10, float("nan")])
def test_what_can_be_no_limit(database: Database, dollars: float) -> None:
    with pytest.raises(InvalidRequest):
        set_spend_limit(database, SYSTEM, EVERYTHING, dollars)
