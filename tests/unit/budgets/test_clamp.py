"""max_tokens is lowered to the largest value that fits every choice, and no further."""
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frontend.budgets.clamp import Need

NEEDS = st.builds(Need, st.integers(1, 1000), st.integers(1, 128), st.integers(1, 32_000), st.integers(1, 5))


@given(NEEDS, st.integers(0, 5_000_000))
def test_what_fits_is_the_largest_that_does(need: Need, available: int) -> None:
    fits = need.fit(available)
    if fits is None:
        assert min(need.least, need.max_tokens) == need.max_tokens < need.least or need.total(need.least) > available
    else:
        assert need.least <= fits <= need.max_tokens
        assert need.total(fits) <= available
        assert fits == need.max_tokens or need.total(fits + 1) > available


def test_the_last_tokens_of_four_choices() -> None:
    need = Need(prompt_tokens=6, choices=4, max_tokens=100)
    assert need.fit(6 + 4) == 1
    assert need.fit(6 + 3) is None
    assert need.fit(6 + 4 + 3) == 1
    assert need.fit(6 + 4 + 4) == 2


def test_no_less_than_the_request_asks_for_at_least() -> None:
    need = Need(prompt_tokens=6, choices=1, max_tokens=100, least=10)
    assert need.fit(16) == 10
    assert need.fit(15) is None
