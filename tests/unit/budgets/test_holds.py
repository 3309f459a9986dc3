"""A hold sets tokens aside, exactly; settling it charges once what was used."""
from __future__ import annotations

import threading

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from frontend.accounts.audit import SYSTEM
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import balance, settle, settle_abandoned, take_hold
from frontend.db import Database
from frontend.db import balances as rows
from frontend.db.records import Account
from frontend.db.token_records import Balance
from frontend.db.token_tables import balances, ledger, usage_records
from frontend.errors import BudgetExceeded
from tests.unit.budgets.books import check_books, ending, order


def test_an_account_without_a_grant_has_nothing(database: Database, ada: Account) -> None:
    assert balance(database, ada.id) == Balance(0, 0, 0, 0)
    with pytest.raises(BudgetExceeded):
        take_hold(database, order(ada.id, 1, Need(1, 1, 1)))


def test_a_request_from_hold_to_charge(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 1000, "for tests")
    hold = take_hold(database, order(ada.id, 1, Need(10, 2, 50)))
    assert (hold.max_tokens, hold.available) == (50, 890)
    assert check_books(database, ada.id) == Balance(1000, 890, 110, 0)
    settled = settle(database, hold.id, ending(31))
    assert settled is not None
    assert (settled.record.charged, settled.available) == (41, 959)
    assert check_books(database, ada.id) == Balance(1000, 959, 0, 41)


def test_settling_twice_charges_once(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 1000, "for tests")
    hold = take_hold(database, order(ada.id, 1, Need(10, 1, 50)))
    assert settle(database, hold.id, ending(5)) is not None
    assert settle(database, hold.id, ending(7)) is None
    assert settle_abandoned(database, hold.id, 0) is None
    assert check_books(database, ada.id).charged == 15


def test_the_keeper_and_a_late_request_settle_once_between_them(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100_000, "for tests")
    holds = [take_hold(database, order(ada.id, n, Need(10, 1, 50))) for n in range(20)]
    with database.write() as connection:
        rows.renew_holds(connection, [(hold.id, 3) for hold in holds])
    together = threading.Barrier(2)
    won: list[tuple[str, str]] = []

    def keeper() -> None:
        for hold in holds:
            together.wait()
            if settle_abandoned(database, hold.id, 1):
                won.append((hold.id, "keeper"))

    def request() -> None:
        for hold in holds:
            together.wait()
            if settle(database, hold.id, ending(5)):
                won.append((hold.id, "request"))

    threads = [threading.Thread(target=keeper), threading.Thread(target=request)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(hold_id for hold_id, _ in won) == sorted(hold.id for hold in holds)
    by_keeper = sum(who == "keeper" for _, who in won)
    assert check_books(database, ada.id) == Balance(
        100_000, 100_000 - by_keeper * 13 - (20 - by_keeper) * 15, 0, by_keeper * 13 + (20 - by_keeper) * 15)


def test_an_abandoned_hold_costs_its_prompt_and_what_the_last_checkpoint_says(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 1000, "for tests")
    hold = take_hold(database, order(ada.id, 1, Need(10, 1, 50)))
    with database.write() as connection:
        assert rows.renew_holds(connection, [(hold.id, 7)]) == 1
    settled = settle_abandoned(database, hold.id, 1)
    assert settled is not None
    assert (settled.record.charged, settled.record.settled_by, settled.record.latency_ms) == (17, "keeper", None)
    assert check_books(database, ada.id) == Balance(1000, 983, 0, 17)


def test_an_abandoned_hold_of_a_request_that_never_ran_costs_nothing(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 1000, "for tests")
    hold = take_hold(database, order(ada.id, 1, Need(10, 1, 50)))
    settled = settle_abandoned(database, hold.id, 0)
    assert settled is not None
    assert (settled.record.charged, settled.record.prompt_tokens) == (0, 0)
    assert check_books(database, ada.id) == Balance(1000, 1000, 0, 0)


def test_a_hold_whose_lease_was_renewed_meanwhile_is_not_abandoned(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 1000, "for tests")
    hold = take_hold(database, order(ada.id, 1, Need(10, 1, 50)))
    with database.write() as connection:
        rows.renew_holds(connection, [(hold.id, None)])
    assert settle_abandoned(database, hold.id, 0) is None
    assert check_books(database, ada.id).held == 60


@pytest.mark.parametrize(("end", "charged"), [
    (ending(0, 503, ran=False, charged=False), 0), (ending(0, 499, ran=False), 0), (ending(3, 499), 13),
    (ending(3, 502), 13), (ending(3, 500, charged=False), 0), (ending(0, 499), 10),
])
def test_what_an_ending_costs(database: Database, ada: Account, end: object, charged: int) -> None:
    give_grant(database, SYSTEM, ada.id, 1000, "for tests")
    hold = take_hold(database, order(ada.id, 1, Need(10, 1, 50)))
    settle(database, hold.id, end)  # type: ignore[arg-type]
    assert check_books(database, ada.id) == Balance(1000, 1000 - charged, 0, charged)


def test_max_tokens_is_lowered_near_the_end(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 10, "for tests")
    hold = take_hold(database, order(ada.id, 1, Need(prompt_tokens=6, choices=4, max_tokens=100)))
    assert (hold.max_tokens, hold.available) == (1, 0)
    settle(database, hold.id, ending(0, 503, ran=False, charged=False))
    one_less = take_hold(database, order(ada.id, 2, Need(0, 1, 1)))
    with pytest.raises(BudgetExceeded) as refused:
        take_hold(database, order(ada.id, 3, Need(prompt_tokens=6, choices=4, max_tokens=100)))
    assert refused.value.headers["x-should-retry"] == "false"
    assert "9 of yours" in refused.value.message
    settle(database, one_less.id, ending(1))
    check_books(database, ada.id)


def test_min_tokens_is_never_cut(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 20, "for tests")
    assert take_hold(database, order(ada.id, 1, Need(6, 1, 100, least=14))).max_tokens == 14
    with pytest.raises(BudgetExceeded, match="at least 14 tokens"):
        take_hold(database, order(ada.id, 2, Need(6, 1, 100, least=14)))


def test_two_keys_of_one_person_share_one_pool(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for tests")
    first, second = (order(ada.id, number, Need(10, 1, 50)) for number in (1, 2))
    take_hold(database, first)
    assert take_hold(database, second).max_tokens == 30


def test_the_database_refuses_a_balance_that_does_not_add_up(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for tests")
    for change in ("available = available + 1", "held = -1, available = available + 1", "granted = 0"):
        with pytest.raises(IntegrityError), database.write() as connection:
            connection.execute(text(f"UPDATE balances SET {change}"))


def test_the_ledger_only_grows(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for tests")
    for change in ("UPDATE ledger SET amount = 1", "DELETE FROM ledger"):
        with pytest.raises(IntegrityError), database.write() as connection:
            connection.execute(text(change))


def test_no_text_is_kept(database: Database, ada: Account) -> None:
    columns = {column.name for table in (usage_records, ledger, balances) for column in table.c}
    assert not columns & {"prompt", "text", "body", "completion"}


def test_a_charge_record_and_hold_have_one_id(database: Database, ada: Account) -> None:
    give_grant(database, SYSTEM, ada.id, 100, "for tests")
    hold = take_hold(database, order(ada.id, "x", Need(1, 1, 1)))
    settle(database, hold.id, ending(1))
    with database.read() as connection:
        assert connection.execute(select(usage_records.c.id)).scalars().all() == ["req_x"]
        charge = select(ledger.c.subject, ledger.c.amount).where(ledger.c.kind == "charge")
        assert connection.execute(charge).all() == [("req_x", -2)]

