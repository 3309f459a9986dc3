"""Warmth, against a real Valkey of its own, and Tritons of the protocol alone."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from frontend.limits.store import connect
from tests.small_triton import SmallTriton
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


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    """One whose tiny-llama is Warm."""
    server = SmallTriton(["tiny-llama"])
    server.states["tiny-llama_engine"] = "READY"
    yield server
    server.kill()
