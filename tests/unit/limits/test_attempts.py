"""How often a password may be tried."""
from __future__ import annotations

import pytest

from frontend.limits.attempts import Attempts
from tests.valkey import Valkey


@pytest.fixture
def attempts(valkey: Valkey) -> Attempts:
    valkey.client.flushall()
    return Attempts(valkey.url, valkey.client)


def tried(attempts: Attempts, count: int, origin: str = "10.0.0.1", email: str = "ada@example.org") -> int:
    """How many of so many attempts are allowed."""
    return sum(attempts.allowed(origin, email) for _ in range(count))


def test_an_address_gets_few_guesses_at_an_account(attempts: Attempts) -> None:
    assert tried(attempts, 30) == 10
    assert tried(attempts, 5, email="eve@example.org") == 5
    assert tried(attempts, 5, origin="10.0.0.2") == 5


def test_an_address_gets_not_many_guesses_in_all(attempts: Attempts) -> None:
    assert sum(tried(attempts, 9, email=f"{number}@example.org") for number in range(20)) == 60


def test_an_account_is_closed_to_guesses_from_everywhere(attempts: Attempts) -> None:
    assert sum(tried(attempts, 9, origin=f"10.0.1.{number}") for number in range(30)) == 200


def test_a_network_of_ipv6_addresses_counts_as_one(attempts: Attempts) -> None:
    assert sum(tried(attempts, 1, origin=f"2001:db8:1:2::{number:x}") for number in range(20)) == 10
    assert tried(attempts, 5, origin="2001:db8:1:3::1") == 5
    assert tried(attempts, 5, origin="::ffff:10.0.0.1") + tried(attempts, 20) == 10
    attempts.forget("2001:db8:1:2::1", "ada@example.org")
    assert tried(attempts, 5, origin="2001:db8:1:2:aaaa::") == 5


def test_who_knows_the_password_begins_anew(attempts: Attempts) -> None:
    for _ in range(4):
        assert tried(attempts, 9) == 9
        attempts.forget("10.0.0.1", "ada@example.org")
