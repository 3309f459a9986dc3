"""Threads get their turns in the order in which they came, and give up in time."""
from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from frontend.db.turns import Turns


def test_first_come_first_served() -> None:
    turns, order = Turns(), []
    assert turns.take(1)

    def wait(number: int) -> None:
        assert turns.take(30)
        order.append(number)
        turns.end()

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(turns._waiting) <= number:
            time.sleep(0.001)
    turns.end()
    for thread in threads:
        thread.join()
    assert order == list(range(20))
    assert turns.take(0)


def test_who_gave_up_is_passed_over() -> None:
    turns = Turns()
    assert turns.take(1)
    assert not turns.take(0.01)
    turns.end()
    assert turns.take(0.01)


def test_one_at_a_time() -> None:
    turns, inside, most = Turns(), [], []

    def work(number: int) -> None:
        for _ in range(200):
            assert turns.take(30)
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            turns.end()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert max(most) == 1


def test_turns_survive_those_that_give_up_at_the_last_moment() -> None:
    turns, got = Turns(), []

    def work(number: int) -> None:
        for _ in range(300):
            if turns.take(0.0005):
                got.append(number)
                turns.end()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert got
    assert turns.take(0)
