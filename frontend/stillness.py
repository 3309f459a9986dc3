"""Tells what has died from what only waits, without looking at a clock that people can move.

Whoever lives makes a number go up, its beat, in a place that others see. An observer remembers since when each beat has
not moved, by its own monotonic clock. So a clock that is set, here or on any other machine, ends no lease early and
makes none last.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Stillness(Generic[Key]):
    """What one observer has seen. `lease` is how many seconds a beat may stand still, `every` how often it looks."""

    def __init__(self, lease: float, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease
        # A pause counts as little as two looks: what stopped us, a frozen machine or a database that was away, may well
        # have stopped those whom we watch, and they get the time of a whole lease to go on.
        self._longest_step = 2 * every
        self._clock = clock
        self._looked: float | None = None
        self._seen: dict[Key, tuple[int, float]] = {}

    def observe(self, beats: Mapping[Key, int]) -> list[Key]:
        """Take in the beats of all that there are now. Returns those that have stood still for the whole lease."""
        now = self._clock()
        step = 0.0 if self._looked is None else min(now - self._looked, self._longest_step)
        self._looked = now
        seen = {}
        for key, beat in beats.items():
            known, age = self._seen.get(key, (beat, -step))
            seen[key] = (beat, age + step if beat == known else 0.0)
        self._seen = seen
        return [key for key, (_, age) in seen.items() if age >= self._lease]

    def forget(self) -> None:
        """Start over, as when the place of the beats could not be written: nobody could have moved theirs."""
        self._looked = None
        self._seen = {}
