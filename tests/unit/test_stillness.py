"""What stands still for a whole lease, seen again and again, has died; nothing else has."""
from __future__ import annotations

from frontend.stillness import Stillness


class Clock:
    """Seconds, as the test wants them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def looks(still: Stillness[str], clock: Clock, beats: dict[str, int], count: int) -> list[str]:
    """What the last of so many looks, one a second, finds."""
    found: list[str] = []
    for _ in range(count):
        clock.now += 1
        found = still.observe(beats)
    return found


def test_a_beat_that_stands_still_for_the_lease_is_dead() -> None:
    clock = Clock()
    still: Stillness[str] = Stillness(10, 1, clock)
    assert still.observe({"a": 3}) == []
    assert looks(still, clock, {"a": 3}, 9) == []
    assert looks(still, clock, {"a": 3}, 1) == ["a"]


def test_each_beat_starts_the_lease_anew() -> None:
    clock = Clock()
    still: Stillness[str] = Stillness(10, 1, clock)
    still.observe({"a": 0, "b": 0})
    for beat in range(1, 30):
        assert looks(still, clock, {"a": beat, "b": 0}, 1) == (["b"] if beat >= 10 else [])


def test_an_observer_that_was_stopped_gives_everybody_time() -> None:
    """An hour passed, by whatever clock, while nobody looked: those it watches may have been stopped with it."""
    clock = Clock()
    still: Stillness[str] = Stillness(10, 1, clock)
    still.observe({"a": 0})
    clock.now += 3600
    assert still.observe({"a": 0}) == []
    assert looks(still, clock, {"a": 0}, 7) == []
    assert looks(still, clock, {"a": 0}, 1) == ["a"]


def test_what_is_gone_is_forgotten_and_what_is_new_has_a_whole_lease() -> None:
    clock = Clock()
    still: Stillness[str] = Stillness(10, 1, clock)
    still.observe({"a": 0})
    looks(still, clock, {}, 1)
    looks(still, clock, {"a": 0}, 1)
    assert looks(still, clock, {"a": 0}, 9) == []
    assert looks(still, clock, {"a": 0}, 1) == ["a"]


def test_starting_over() -> None:
    clock = Clock()
    still: Stillness[str] = Stillness(10, 1, clock)
    still.observe({"a": 0})
    looks(still, clock, {"a": 0}, 9)
    still.forget()
    assert looks(still, clock, {"a": 0}, 10) == []
    assert looks(still, clock, {"a": 0}, 1) == ["a"]
