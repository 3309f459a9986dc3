"""A process renews what its requests hold, notes what they produced, and settles late what it could not settle."""
from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets.booking import Booking
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import settle_abandoned, take_hold
from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.db import balances as rows
from frontend.db.records import Account
from frontend.db.token_records import Balance, OpenHold
from frontend.errors import InternalError, ModelUnavailable, Unavailable
from tests.unit.budgets.books import check_books, order

PATIENCE = 20.0


@pytest.fixture
def database_url(tmp_path: object) -> str:
    return f"sqlite:///{tmp_path}/strata.db"


@pytest.fixture
def ada(database: Database) -> Account:
    account = create_account(database, SYSTEM, "ada@example.org")
    give_grant(database, SYSTEM, account.id, 1000, "for tests")
    return account


@pytest.fixture
def impatient(database: Database) -> Iterator[Database]:
    """The same database, for a process that waits for no lock."""
    other = Database(database.engine.url.render_as_string(hide_password=False), patience=0)
    yield other
    other.close()


class Engine:
    """What the engine has done for a request."""

    def __init__(self) -> None:
        self.begun = False
        self.completion_tokens = 0
        self.activation_bytes = 0

    def produce(self, tokens: int) -> None:
        self.begun, self.completion_tokens = True, self.completion_tokens + tokens


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def only_hold(database: Database, account: Account) -> OpenHold:
    with database.read() as connection:
        (hold,) = rows.open_holds(connection, account.id)
    return hold


def hold_of(database: Database, booking: Booking) -> OpenHold:
    with database.read() as connection:
        (hold,) = [hold for hold in rows.open_holds(connection) if hold.id == booking.hold.id]
    return hold


def book(database: Database, account: Account, leases: Leases, on_lost: Callable[[], object] = lambda: None) -> Booking:
    return Booking(database, leases, order(account.id, 1, Need(10, 1, 50)), on_lost)


def test_what_is_produced_is_noted(database: Database, ada: Account) -> None:
    leases, engine = Leases(database, lease=30), Engine()
    with book(database, ada, leases) as booking:
        booking.follow(engine)
        assert only_hold(database, ada).produced is None
        engine.produce(1)
        until(lambda: only_hold(database, ada).produced == 1)
        engine.produce(6)
        until(lambda: only_hold(database, ada).produced == 7)
        assert booking.settle(200) == 983
    assert check_books(database, ada.id) == Balance(1000, 983, 0, 17)


def test_a_lease_is_renewed_also_while_nothing_is_produced(database: Database, ada: Account) -> None:
    leases = Leases(database, lease=1)
    with book(database, ada, leases):
        until(lambda: only_hold(database, ada).beat >= 3)
    assert check_books(database, ada.id) == Balance(1000, 1000, 0, 0)


def test_a_request_whose_hold_is_gone_hears_of_it(database: Database, ada: Account) -> None:
    lost = threading.Event()
    leases = Leases(database, lease=1)
    with book(database, ada, leases, lost.set) as booking:
        until(lambda: settle_abandoned(database, booking.hold.id, only_hold(database, ada).beat) is not None)
        assert lost.wait(PATIENCE)
        assert booking.lost
        assert booking.settle(200) is None
    assert check_books(database, ada.id) == Balance(1000, 1000, 0, 0)


@pytest.mark.parametrize(("error", "charged"), [
    (None, 12), (ModelUnavailable("Cold"), 0), (InternalError("a bug"), 0), (RuntimeError("a bug"), 0),
])
def test_whatever_ends_a_request_settles_its_hold(
    database: Database, ada: Account, error: Exception | None, charged: int
) -> None:
    """Without an error the client has gone, and pays; an error in place of an answer costs nothing."""
    leases, engine = Leases(database, lease=30), Engine()

    def request() -> None:
        with book(database, ada, leases) as booking:
            booking.follow(engine)
            engine.produce(2)
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            request()
    else:
        request()
    assert check_books(database, ada.id) == Balance(1000, 1000 - charged, 0, charged)


@pytest.mark.parametrize(("delivered", "charged"), [(True, 15), (False, 0)])
def test_what_could_not_be_settled_is_settled_when_the_database_is_back(
    database: Database, impatient: Database, ada: Account, delivered: bool, charged: int
) -> None:
    """A whole answer is kept back then and costs nothing; a stream has been read."""
    leases, engine = Leases(impatient, lease=30), Engine()
    with book(impatient, ada, leases) as booking:
        booking.follow(engine)
        engine.produce(5)
        with database.write():  # has SQLite's only write lock
            with pytest.raises(Unavailable):
                booking.settle(200, delivered=delivered)
            assert check_books(database, ada.id).held == 60
    until(lambda: check_books(database, ada.id).held == 0)
    assert check_books(database, ada.id) == Balance(1000, 1000 - charged, 0, charged)


def test_a_database_that_is_locked_gives_no_hold(database: Database, impatient: Database, ada: Account) -> None:
    with database.write(), pytest.raises(Unavailable):
        take_hold(impatient, order(ada.id, 1, Need(10, 1, 50)))
    assert check_books(database, ada.id).held == 0


def test_leases_survive_a_database_that_was_locked(database: Database, impatient: Database, ada: Account) -> None:
    leases = Leases(impatient, lease=0.5)
    with book(impatient, ada, leases) as booking:
        with database.write():
            time.sleep(1)
        beat = only_hold(database, ada).beat
        until(lambda: only_hold(database, ada).beat > beat)
        assert not booking.lost


def test_a_settlement_that_can_never_succeed_stops_nobody_elses_renewal(
    database: Database, impatient: Database, ada: Account
) -> None:
    """It is given up, and its hold is left to the keeper, which knows what the last checkpoint said."""
    leases, engine = Leases(impatient, lease=1), Engine()
    with book(impatient, ada, leases) as booking:
        booking.follow(engine)
        engine.produce(5)
        until(lambda: only_hold(database, ada).produced == 5)
        engine.activation_bytes = 2**80  # no database has a place for that
        with database.write(), pytest.raises(Unavailable):  # has SQLite's only write lock
            booking.settle(200)
    given_up = only_hold(database, ada)
    with Booking(impatient, leases, order(ada.id, 2, Need(10, 1, 50)), lambda: None) as living:
        for _ in range(3):
            beat = hold_of(database, living).beat
            until(lambda beat=beat: hold_of(database, living).beat > beat)
        assert settle_abandoned(database, booking.hold.id, given_up.beat) is not None
        assert not living.lost
    assert check_books(database, ada.id) == Balance(1000, 985, 0, 15)


def test_what_is_left_to_settle_is_settled_beside_what_can_never_be(
    database: Database, impatient: Database, ada: Account
) -> None:
    leases = Leases(impatient, lease=30)
    bookings = [Booking(impatient, leases, order(ada.id, number, Need(10, 1, 50)), lambda: None)
                for number in range(3)]
    for number, booking in enumerate(bookings):
        engine = Engine()
        booking.follow(engine)
        engine.produce(5)
        engine.activation_bytes = 2**80 if number == 0 else 0
    with database.write():
        for booking in bookings:
            with pytest.raises(Unavailable):
                booking.settle(200)
    until(lambda: check_books(database, ada.id).charged == 30)
    assert check_books(database, ada.id).held == 60


def test_a_full_disk_gives_no_hold_and_no_uncharged_settlement(
    database: Database, impatient: Database, ada: Account
) -> None:
    leases, engine = Leases(impatient, lease=30), Engine()
    with book(impatient, ada, leases) as booking:
        booking.follow(engine)
        engine.produce(5)
        with full_disk():
            with pytest.raises(Unavailable):
                take_hold(impatient, order(ada.id, 2, Need(10, 1, 50)))
            with pytest.raises(Unavailable):
                booking.settle(200)
        assert check_books(database, ada.id) in (Balance(1000, 940, 60, 0), Balance(1000, 985, 0, 15))
    until(lambda: check_books(database, ada.id).charged == 15)
    assert check_books(database, ada.id) == Balance(1000, 985, 0, 15)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let this process write nothing beyond the first page of any file. SQLite needs more for every transaction."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
