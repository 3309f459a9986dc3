"""Warmth, against Tritons of the protocol alone."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.small_triton import SmallTriton


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    """One whose tiny-llama is Warm."""
    server = SmallTriton(["tiny-llama"])
    server.states["tiny-llama_engine"] = "READY"
    yield server
    server.kill()
