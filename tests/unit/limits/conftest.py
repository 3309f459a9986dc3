"""Limits, against a real Valkey of their own that tests may break."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from frontend.limits.store import connect
from tests.valkey import Valkey


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A Valkey that a test may kill."""
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture
def redis(own_valkey: Valkey) -> Redis:
    return connect(own_valkey.url)
