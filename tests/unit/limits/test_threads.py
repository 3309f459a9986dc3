"""A process's threads are shared between people: whoever floods leaves some for the next."""
from __future__ import annotations

from contextlib import ExitStack

import pytest

from frontend.errors import RateLimited
from frontend.limits.threads import Threads


def take(threads: Threads, stack: ExitStack, account_id: str) -> int:
    """Hold as many threads as the account gets."""
    count = 0
    while True:
        try:
            stack.enter_context(threads.share(account_id))
        except RateLimited:
            return count
        count += 1


def test_one_flood_takes_half() -> None:
    with ExitStack() as stack:
        assert take(Threads(96), stack, "a") == 48


def test_several_floods_leave_a_share_for_the_next() -> None:
    threads = Threads(96)
    with ExitStack() as stack:
        assert [take(threads, stack, name) for name in "abcd"] == [48, 24, 12, 6]
        with threads.share("e"):
            pass


def test_everybody_gets_at_least_one() -> None:
    threads = Threads(4)
    with ExitStack() as stack:
        for name in "abcdefgh":
            assert take(threads, stack, name) >= 1


def test_what_is_given_back_is_free_again() -> None:
    threads = Threads(10)
    for _ in range(3):
        with ExitStack() as stack:
            assert take(threads, stack, "a") == 5


def test_an_error_gives_back_too() -> None:
    threads = Threads(2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), threads.share("a"):
            _ = 1 / 0
