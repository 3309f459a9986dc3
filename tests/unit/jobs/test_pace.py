"""How many requests of Jobs go beside people's, on engines that batch well and on those that do not."""
from __future__ import annotations

import statistics

import pytest

from frontend.jobs.pace import LESSON, Pace


@pytest.mark.parametrize(("alone", "more", "low", "high"), [
    (0.02, 0.00002, 150, 192),  # a GPU: 192 requests take a fifth longer than one
    (0.008, 0.004, 2, 4),  # two cores: each request takes half as long again as one alone
    (0.02, 0.001, 6, 9),
])
def test_as_many_as_cost_others_little(alone: float, more: float, low: int, high: int) -> None:
    """`alone` and `more`: seconds of a step with nobody else, and for each further request in it."""
    pace, seen = Pace(), []
    for number in range(LESSON):
        now = pace.beside(2, 192)
        if number > 200:
            seen.append(now)
        pace.observe(now, 50 * (alone + now * more), 50)
    assert low <= statistics.median(seen) <= max(seen) <= high


def test_what_was_begun_among_many_says_nothing() -> None:
    pace = Pace()
    assert pace.beside(2, 192) == 2
    for _ in range(100):
        pace.observe(192, 60.0, 50)
    assert pace.beside(2, 192) == 2
    for _ in range(100):
        pace.observe(2, 1.0, 50)
        pace.observe(2, 30.0, 1)  # all of it for its prompt
    assert pace.beside(2, 192) == 192
