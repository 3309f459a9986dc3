"""Threads get their turns in the order in which they came, and give up only where nothing moves any more."""
from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from frontend.db.turns import NoTurn, Turns


def test_first_come_first_served() -> None:
    turns, order = Turns(1, 30), []
    turns.take()

    def wait(number: int) -> None:
        turns.take()
        order.append(number)
        turns.end(well=True)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(turns._waiting) <= number:
            time.sleep(0.001)
    turns.end(well=True)
    for thread in threads:
        thread.join()
    assert order == list(range(20))
    turns.take()


def test_so_many_at_a_time() -> None:
    turns, inside, most = Turns(3, 30), [], []

    def work(number: int) -> None:
        for _ in range(200):
            turns.take()
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            turns.end(well=True)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert max(most) <= 3


def test_who_gave_up_is_passed_over() -> None:
    turns = Turns(1, 0.05)
    turns.take()
    with pytest.raises(NoTurn):
        turns.take()
    turns.end(well=True)
    turns.take()


def test_while_others_turns_end_well_nobody_gives_up() -> None:
    turns = Turns(1, 0.3)

    def slow(_: int) -> None:
        turns.take()
        time.sleep(0.1)
        turns.end(well=True)

    with ThreadPoolExecutor(12) as pool:  # the last waits four times as long as its patience
        list(pool.map(slow, range(12)))


def test_where_turns_end_badly_everybody_gives_up() -> None:
    turns, gave_up = Turns(1, 0.3), []

    def away(_: int) -> None:
        try:
            turns.take()
        except NoTurn:
            gave_up.append(True)
            return
        time.sleep(0.3)
        turns.end(well=False)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(away, range(12)))
    assert len(gave_up) >= 9
    turns.take()


def test_turns_survive_those_that_give_up_at_the_last_moment() -> None:
    turns, got = Turns(1, 0.0005), []

    def work(number: int) -> None:
        for _ in range(300):
            try:
                turns.take()
            except NoTurn:
                continue
            got.append(number)
            turns.end(well=False)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert got
    turns.take()
