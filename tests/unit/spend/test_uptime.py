"""Uptime is counted once, for what was seen, whatever keepers and clocks do."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from frontend.db import Database
from frontend.db import spend as rows
from frontend.db.token_records import Uptime
from frontend.errors import Unavailable
from frontend.inference import ModelCard
from frontend.spend.uptime import LONGEST_GAP, UptimeMeter, count_uptime
from tests.unit.completions.test_plan import CARD
from tests.unit.test_stillness import Clock

NOON = datetime(2026, 5, 15, 12, tzinfo=UTC)
MODEL = replace(CARD, id="llama-8b", price_per_hour=3.0)


class DatabaseClock:
    """The database's clock, as the test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOON
        monkeypatch.setattr(rows, "now", lambda connection: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> DatabaseClock:
    return DatabaseClock(monkeypatch)


class Engines:
    """What Triton says of its engines."""

    def __init__(self) -> None:
        self.known: Mapping[str, str] | None = {"llama-8b": "warm"}
        self.number = 1

    def models(self) -> list[ModelCard]:
        if self.known is None:
            raise Unavailable("Triton is away")
        return [MODEL, replace(MODEL, id="not-ours")]

    def engines(self, models: list[str]) -> dict[str, int]:
        return {model: self.number * ((self.known or {}).get(model, "cold") != "cold") for model in models}


class Keeper:
    """A meter with clocks of the test's: the keeper's own, and the database's, which goes along with it."""

    def __init__(self, database: Database, clock: DatabaseClock) -> None:
        self.engines, self.monotonic, self.clock = Engines(), Clock(), clock
        self.meter = UptimeMeter(
            database, self.engines, ("llama-8b",), self.monotonic)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.monotonic.now += seconds
        self.clock.now += timedelta(seconds=seconds)

    def rounds(self, count: int, every: float = 5) -> None:
        for _ in range(count):
            self.meter.round()
            self.wait(every)


def count(database: Database, seconds: float) -> timedelta:
    with database.write() as connection:
        return count_uptime(connection, "llama-8b", 3.0, timedelta(seconds=seconds))


def uptime(database: Database) -> float:
    """Seconds in all."""
    with database.read() as connection:
        return sum(row.milliseconds for row in rows.uptimes(connection)) / 1000


def test_consecutive_intervals_add_up(database: Database, clock: DatabaseClock) -> None:
    for _ in range(10):
        clock.now += timedelta(seconds=5)
        assert count(database, 5) == timedelta(seconds=5)
    assert uptime(database) == 50


def test_two_keepers_count_no_moment_twice(database: Database, clock: DatabaseClock) -> None:
    for _ in range(20):  # two keepers, both every 5 s, 2.5 s apart
        clock.now += timedelta(seconds=2.5)
        count(database, 5)
    assert uptime(database) == 52.5


def test_the_same_interval_counts_once(database: Database, clock: DatabaseClock) -> None:
    count(database, 5)
    assert count(database, 5) == timedelta(0)
    assert uptime(database) == 5


def test_a_month_ends_at_midnight_utc(database: Database, clock: DatabaseClock) -> None:
    clock.now = datetime(2026, 6, 1, 0, 0, 2, tzinfo=UTC)
    count(database, 5)
    with database.read() as connection:
        assert rows.uptimes(connection) == [
            Uptime("llama-8b", "2026-05", 3_000_000, 3000), Uptime("llama-8b", "2026-06", 3_000_000, 2000)]
        assert rows.uptimes(connection, "2026-06") == [Uptime("llama-8b", "2026-06", 3_000_000, 2000)]


def test_days_end_at_midnight_utc_too_and_add_up_to_their_month(database: Database, clock: DatabaseClock) -> None:
    clock.now = datetime(2026, 5, 16, 0, 10, tzinfo=UTC)
    with database.write() as connection:
        count_uptime(connection, "llama-8b", 3.0, timedelta(days=1, minutes=30))
        days, months = rows.costs_by_day(connection, "2026-05"), rows.uptimes(connection)
    minutes = {day: models["llama-8b"] / 3_000_000 / 60_000 for day, models in days.items()}
    assert minutes == {"2026-05-14": 20, "2026-05-15": 24 * 60, "2026-05-16": 10}
    assert sum(uptime.milliseconds for uptime in months) == (24 * 60 + 30) * 60_000


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_set_by_an_hour_invents_no_hour_and_stops_nothing(
    database: Database, clock: DatabaseClock, hours: int
) -> None:
    for _ in range(10):
        clock.now += timedelta(seconds=5)
        count(database, 5)
    clock.now += timedelta(hours=hours)
    for _ in range(10):
        clock.now += timedelta(seconds=5)
        count(database, 5)
    assert 95 <= uptime(database) <= 100


def test_another_price_is_another_row(database: Database, clock: DatabaseClock) -> None:
    count(database, 5)
    clock.now += timedelta(seconds=5)
    with database.write() as connection:
        count_uptime(connection, "llama-8b", 4.0, timedelta(seconds=5))
    with database.read() as connection:
        assert [row.price for row in rows.uptimes(connection)] == [3_000_000, 4_000_000]


def test_a_keeper_counts_what_it_sees(database: Database, clock: DatabaseClock) -> None:
    keeper = Keeper(database, clock)
    keeper.rounds(11)
    assert uptime(database) == 50
    keeper.engines.known = {"llama-8b": "loading"}  # has the GPUs already
    keeper.rounds(2)
    assert uptime(database) == 60
    keeper.engines.known = {}
    keeper.rounds(10)
    assert uptime(database) == 60


def test_time_while_no_keeper_looked_is_not_counted(database: Database, clock: DatabaseClock) -> None:
    keeper = Keeper(database, clock)
    keeper.rounds(3)
    keeper.wait(3600)
    Keeper(database, clock).rounds(3)  # it was started anew
    assert uptime(database) == 20


def test_a_keeper_that_stood_still_does_not_know_of_that_time(database: Database, clock: DatabaseClock) -> None:
    keeper = Keeper(database, clock)
    keeper.rounds(3)
    keeper.wait(LONGEST_GAP)
    keeper.rounds(3)
    assert uptime(database) == 20


def test_a_triton_that_is_away_is_not_up(database: Database, clock: DatabaseClock) -> None:
    keeper = Keeper(database, clock)
    keeper.rounds(3)
    keeper.engines.known = None
    keeper.rounds(3)
    keeper.engines.known = {"llama-8b": "warm"}
    keeper.rounds(3)
    assert uptime(database) == 20


def test_what_was_seen_while_the_database_was_away_is_counted_later(
    database: Database, clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(database, clock)
    keeper.rounds(3)
    with monkeypatch.context() as patched:
        def away(*_: object) -> object:
            raise Unavailable("The database is away")

        patched.setattr("frontend.spend.uptime.count_uptime", away)
        for _ in range(10):
            with pytest.raises(Unavailable):
                keeper.rounds(1)
            keeper.wait(5)
    keeper.rounds(1)
    assert uptime(database) == 65


def test_two_keepers_together(database: Database, clock: DatabaseClock) -> None:
    first, second = Keeper(database, clock), Keeper(database, clock)
    second.monotonic = first.monotonic
    second.meter._clock = first.monotonic
    for _ in range(10):
        first.meter.round()
        first.wait(1)
        second.meter.round()
        first.wait(4)
    assert uptime(database) == 46


def test_engines_at_two_tritons_cost_twice_as_much_an_hour(database: Database, clock: DatabaseClock) -> None:
    keeper = Keeper(database, clock)
    keeper.engines.number = 2
    keeper.rounds(3)
    with database.read() as connection:
        (row,) = rows.uptimes(connection)
    assert (row.milliseconds, row.price) == (10_000, 6_000_000)
