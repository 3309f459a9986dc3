"""So many requests of a key run, so many wait, first come, first served, over all processes; what dies gives back."""
from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from redis import Redis

from frontend.errors import DeadlineExceeded, RateLimited, Unavailable
from frontend.limits import slots as slots_module
from frontend.limits.slots import ClientLeft, Concurrency, Slots
from tests.stack import REPOSITORY
from tests.valkey import Valkey

PATIENCE = 30.0
TWO_AND_TWO = Concurrency(active=2, waiting=2)


class Request(threading.Thread):
    """A request that has a slot until it is told to end."""

    def __init__(
        self, slots: Slots, key_id: str = "key_1", limit: Concurrency = TWO_AND_TWO, timeout: float = 60
    ) -> None:
        super().__init__(daemon=True)
        self._slots, self._key_id, self._limit, self._timeout = slots, key_id, limit, timeout
        self.runs, self.waits, self.may_end = threading.Event(), threading.Event(), threading.Event()
        self.leave: Callable[[], object] | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self._slots.slot(self._key_id, self._limit, self._timeout, self._wait):
                self.runs.set()
                self.may_end.wait(PATIENCE)
        except Exception as error:
            self.error = error

    def _wait(self, leave: Callable[[], object]) -> None:
        self.leave = leave
        self.waits.set()

    def end(self) -> None:
        self.may_end.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def running(slots: Slots, key_id: str = "key_1") -> Request:
    request = Request(slots, key_id)
    assert request.runs.wait(PATIENCE), request.error
    return request


def waiting(slots: Slots) -> Request:
    request = Request(slots)
    assert request.waits.wait(PATIENCE), request.error
    return request


def test_beyond_active_they_wait_and_beyond_waiting_they_are_refused(redis: Redis) -> None:
    slots = Slots(redis)
    first, second = running(slots), running(slots)
    third, fourth = waiting(slots), waiting(slots)
    refused = Request(slots)
    refused.join(PATIENCE)
    assert isinstance(refused.error, RateLimited)
    assert refused.error.headers["Retry-After"] == "1"
    assert not third.runs.is_set()
    first.end()
    assert third.runs.wait(PATIENCE)
    assert not fourth.runs.is_set()
    second.end()
    assert fourth.runs.wait(PATIENCE)
    for request in (third, fourth):
        request.end()
    running(slots).end()


def test_a_flood_of_one_key_leaves_another_alone(redis: Redis) -> None:
    slots = Slots(redis)
    flood = [Request(slots) for _ in range(10)]
    other = running(slots, "key_2")
    other.end()
    for request in flood:
        request.end()


def test_processes_share_a_keys_slots_and_take_turns(own_valkey: Valkey) -> None:
    here, there = Slots(own_valkey.client), Slots(own_valkey.client)
    first, second = running(here), running(there)
    third, fourth = waiting(there), waiting(here)
    first.end()
    assert third.runs.wait(PATIENCE)
    assert not fourth.runs.is_set()
    second.end()
    assert fourth.runs.wait(PATIENCE)
    for request in (third, fourth):
        request.end()


def test_a_client_that_leaves_while_waiting_frees_its_place(redis: Redis) -> None:
    slots = Slots(redis)
    first, second = running(slots), running(slots)
    third, fourth = waiting(slots), waiting(slots)
    assert third.leave is not None
    third.leave()
    third.join(PATIENCE)
    assert isinstance(third.error, ClientLeft)
    fifth = waiting(slots)
    for request in (first, second):
        request.end()
    assert fourth.runs.wait(PATIENCE)
    assert fifth.runs.wait(PATIENCE)
    for request in (fourth, fifth):
        request.end()


def test_waiting_has_an_end(redis: Redis) -> None:
    slots = Slots(redis)
    first, second = running(slots), running(slots)
    late = Request(slots, timeout=0.1)
    late.join(PATIENCE)
    assert isinstance(late.error, DeadlineExceeded)
    for request in (first, second):
        request.end()


def test_no_waiting_at_all(redis: Redis) -> None:
    slots = Slots(redis)
    limit = Concurrency(active=1, waiting=0)
    first = Request(slots, limit=limit)
    assert first.runs.wait(PATIENCE)
    refused = Request(slots, limit=limit)
    refused.join(PATIENCE)
    assert isinstance(refused.error, RateLimited)
    first.end()
    second = Request(slots, limit=limit)
    assert second.runs.wait(PATIENCE)
    second.end()


def test_redis_down_lets_nobody_in(own_valkey: Valkey) -> None:
    slots = Slots(own_valkey.client)
    own_valkey.kill()
    refused = Request(slots)
    refused.join(PATIENCE)
    assert isinstance(refused.error, Unavailable)


def test_a_redis_that_lost_everything_hears_what_runs_and_waits(own_valkey: Valkey, redis: Redis) -> None:
    slots = Slots(redis)
    first, second = running(slots), running(slots)
    third = waiting(slots)
    own_valkey.kill()
    own_valkey.start()
    until(lambda: own_valkey.client.scard("strata:slots:key_1:active") == 2)
    until(lambda: own_valkey.client.zcard("strata:slots:key_1:waiting") == 1)
    assert not third.runs.is_set()
    first.end()
    assert third.runs.wait(PATIENCE)
    for request in (second, third):
        request.end()


def test_a_slot_that_is_given_back_while_redis_is_away_is_free_afterwards(own_valkey: Valkey, redis: Redis) -> None:
    slots = Slots(redis)
    first, second = running(slots), running(slots)
    own_valkey.stand_still()
    first.end()
    own_valkey.go_on()
    until(lambda: own_valkey.client.scard("strata:slots:key_1:active") == 1)
    second.end()


def process_with_a_slot(valkey: Valkey) -> subprocess.Popen[str]:
    code = (
        "import time; from frontend.limits.slots import Concurrency, Slots; from frontend.limits.store import connect\n"
        f"with Slots(connect({valkey.url!r})).slot('key_1', Concurrency(1, 5), 60, print):\n"
        "    print('runs', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "runs"
    return process


def test_who_is_only_refused_frees_the_slots_of_a_killed_process(
    own_valkey: Valkey, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "LEASE", 1.0)
    monkeypatch.setattr(slots_module, "BEAT", 0.2)
    process = process_with_a_slot(own_valkey)
    process.kill()
    process.wait()
    slots = Slots(redis)

    def gets_one() -> bool:
        try:
            with slots.slot("key_1", Concurrency(1, 0), PATIENCE, print):
                return True
        except RateLimited:
            return False

    assert not gets_one()
    until(gets_one)


def test_the_slots_of_a_killed_process_come_back(
    own_valkey: Valkey, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "LEASE", 5.0)
    monkeypatch.setattr(slots_module, "BEAT", 0.2)
    process = process_with_a_slot(own_valkey)
    slots = Slots(redis)
    request = Request(slots, limit=Concurrency(1, 5))
    assert request.waits.wait(PATIENCE)
    time.sleep(6)  # more than a lease, in which the other process lives
    assert not request.runs.is_set()
    process.kill()
    process.wait()
    assert request.runs.wait(PATIENCE)
    request.end()
    until(lambda: not own_valkey.client.exists("strata:slots:key_1:active"))


def test_nothing_is_left_behind(own_valkey: Valkey, redis: Redis) -> None:
    slots = Slots(redis)
    limit = Concurrency(active=4, waiting=40)
    running_now: list[int] = []
    counts: set[int] = set()

    def many(number: int) -> None:
        for _ in range(10):
            with slots.slot("key_1", limit, 60, lambda leave: None):
                running_now.append(number)
                counts.update((len(running_now), own_valkey.client.scard("strata:slots:key_1:active")))
                running_now.remove(number)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(counts) <= 4
    until(lambda: {key.decode() for key in own_valkey.client.scan_iter()} <= {
        "strata:slots-beats", "strata:slots-sequence"})


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
