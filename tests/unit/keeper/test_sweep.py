"""The keeper settles the holds of processes that died, and of no other, whatever the clocks say."""
from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text, update

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import take_hold
from frontend.db import Database
from frontend.db import balances as rows
from frontend.db.token_tables import holds
from frontend.errors import Unavailable
from frontend.keeper.sweep import Sweep
from tests.unit.budgets.books import check_books, order
from tests.unit.test_stillness import Clock

LEASE, EVERY = 10.0, 1.0


@pytest.fixture
def account_id(database: Database) -> str:
    account = create_account(database, SYSTEM, "ada@example.org")
    give_grant(database, SYSTEM, account.id, 1000, "for tests")
    return account.id


def hold_now(database: Database, account_id: str, name: str = "1") -> str:
    return take_hold(database, order(account_id, name, Need(10, 1, 50))).id


def rounds(sweep: Sweep, clock: Clock, count: int) -> int:
    """How many holds so many rounds, one a second, settle."""
    settled = 0
    for _ in range(count):
        clock.now += EVERY
        settled += sweep.round()
    return settled


def test_a_hold_that_nobody_renews_is_settled_after_its_lease(database: Database, account_id: str) -> None:
    clock = Clock()
    sweep = Sweep(database, LEASE, EVERY, clock)
    hold_now(database, account_id)
    sweep.round()
    assert rounds(sweep, clock, 9) == 0
    assert check_books(database, account_id).held == 60
    assert rounds(sweep, clock, 1) == 1
    assert check_books(database, account_id).available == 1000


def test_a_hold_that_is_renewed_lives_on(database: Database, account_id: str) -> None:
    clock = Clock()
    sweep = Sweep(database, LEASE, EVERY, clock)
    hold_id = hold_now(database, account_id)
    for _ in range(10):
        with database.write() as connection:
            rows.renew_holds(connection, [(hold_id, 1)])
        assert rounds(sweep, clock, 9) == 0
    assert check_books(database, account_id).held == 60


@pytest.mark.parametrize("moved", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_clock_moved_by_an_hour_neither_frees_a_lease_early_nor_makes_it_last(
    database: Database, account_id: str, moved: timedelta
) -> None:
    """The rows' times are what they would be if the clock had been moved after they were written."""
    clock = Clock()
    sweep = Sweep(database, LEASE, EVERY, clock)
    hold_now(database, account_id)
    sweep.round()
    with database.write() as connection:
        connection.execute(update(holds).values(created_at=datetime.now(UTC) - moved))
    assert rounds(sweep, clock, 9) == 0
    assert rounds(sweep, clock, 1) == 1


def test_two_keepers_settle_a_hold_once(database: Database, account_id: str) -> None:
    clock = Clock()
    sweeps = [Sweep(database, LEASE, EVERY, clock) for _ in range(2)]
    hold_id = hold_now(database, account_id)
    with database.write() as connection:
        rows.renew_holds(connection, [(hold_id, 5)])
    settled = 0
    for _ in range(15):
        clock.now += EVERY
        settled += sum(sweep.round() for sweep in sweeps)
    assert settled == 1
    assert check_books(database, account_id).charged == 15


def test_while_nobody_can_write_no_lease_runs_out(
    database: Database, account_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds tokens could not renew its lease either, so it gets a whole one once the database is back."""
    monkeypatch.setattr("frontend.db.engine.PATIENCE", 0)
    impatient = Database(database.engine.url.render_as_string(hide_password=False))
    clock = Clock()
    sweep = Sweep(impatient, LEASE, EVERY, clock)
    hold_now(database, account_id)
    sweep.round()
    assert rounds(sweep, clock, 8) == 0
    with database.write() as connection:
        connection.execute(text("SELECT 1"))
        for _ in range(20):
            with pytest.raises(Unavailable):
                rounds(sweep, clock, 1)
    assert rounds(sweep, clock, 10) == 0
    assert rounds(sweep, clock, 1) == 1
    impatient.close()


def test_a_hold_that_can_not_be_settled_keeps_no_other_from_it(database: Database, account_id: str) -> None:
    clock = Clock()
    sweep = Sweep(database, LEASE, EVERY, clock)
    with database.write() as connection:  # whatever the reason may be
        connection.execute(text("CREATE TRIGGER bad BEFORE INSERT ON usage_records WHEN NEW.id = 'req_1' "
                                "BEGIN SELECT RAISE(ABORT, 'no'); END"))
    for name in ("0", "1", "2"):
        hold_now(database, account_id, name)
    sweep.round()
    with pytest.raises(sqlite3.IntegrityError):
        rounds(sweep, clock, 10)
    assert check_books(database, account_id).held == 60
    with pytest.raises(sqlite3.IntegrityError):
        rounds(sweep, clock, 1)
    with database.write() as connection:
        connection.execute(text("DROP TRIGGER bad"))
    assert rounds(sweep, clock, 1) == 1
    assert check_books(database, account_id).available == 1000


def test_a_keeper_that_starts_anew_gives_a_whole_lease(database: Database, account_id: str) -> None:
    clock = Clock()
    hold_now(database, account_id)
    first = Sweep(database, LEASE, EVERY, clock)
    assert rounds(first, clock, 9) == 0
    second = Sweep(database, LEASE, EVERY, clock)
    assert rounds(second, clock, 10) == 0
    assert rounds(second, clock, 1) == 1
