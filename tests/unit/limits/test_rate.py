"""A key may start so many requests in any minute; where they can't be counted, none starts."""
from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from frontend.errors import Unavailable
from frontend.limits.rate import Rate, rate_limited
from frontend.limits.store import PATIENCE
from tests.valkey import Valkey


@pytest.fixture
def rate(own_valkey: Valkey, redis: Redis) -> Rate:
    return Rate(own_valkey.url, redis)


def test_what_is_left_counts_down(rate: Rate) -> None:
    seen = [rate.start("key_1", 3) for _ in range(5)]
    assert [allowed for allowed, _ in seen] == [True, True, True, False, False]
    assert [window.remaining for _, window in seen] == [2, 1, 0, 0, 0]
    assert all(0 < window.reset <= 60 and window.limit == 3 for _, window in seen)


def test_keys_do_not_count_for_each_other(rate: Rate) -> None:
    assert [rate.start(f"key_{n}", 1)[0] for n in range(3)] == [True] * 3


def test_many_processes_and_threads_let_exactly_as_many_through(own_valkey: Valkey, redis: Redis) -> None:
    rates = [Rate(own_valkey.url, redis) for _ in range(4)]
    together = threading.Barrier(80)
    allowed: list[bool] = []

    def start(number: int) -> None:
        together.wait()
        allowed.append(rates[number % 4].start("key_1", 50)[0])

    threads = [threading.Thread(target=start, args=(number,)) for number in range(80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 50


def test_a_redis_that_is_down_refuses_after_its_patience(own_valkey: Valkey, rate: Rate) -> None:
    own_valkey.kill()
    started = time.monotonic()
    with pytest.raises(Unavailable):
        rate.start("key_1", 3)
    assert time.monotonic() - started >= PATIENCE - 0.3


def test_a_redis_that_stands_still_refuses_too(own_valkey: Valkey, rate: Rate) -> None:
    rate.start("key_1", 3)
    own_valkey.stand_still()
    with pytest.raises(Unavailable):
        rate.start("key_1", 3)


def test_a_redis_that_comes_back_in_time_is_waited_for(own_valkey: Valkey, rate: Rate) -> None:
    own_valkey.kill()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(rate.start, "key_1", 3)
        time.sleep(0.5)
        own_valkey.start()
        assert started.result()[0]


def test_the_refusal_says_when_to_come_back_in_whole_seconds_at_least_one() -> None:
    assert rate_limited("", 0.2).headers == {"Retry-After": "1", "retry-after-ms": "200"}
    assert rate_limited("", 12.001).headers == {"Retry-After": "13", "retry-after-ms": "12001"}


def test_another_limit_begins_anew(rate: Rate) -> None:
    for _ in range(5):
        rate.start("key_1", 5)
    assert not rate.start("key_1", 5)[0]
    allowed, window = rate.start("key_1", 2)
    assert (allowed, window.remaining) == (True, 1)
