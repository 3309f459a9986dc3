"""A Triton of the protocol alone, and all of Jobs in front of it."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.job_stack import JobStack
from tests.paid import Person
from tests.small_triton import SmallTriton


@pytest.fixture(scope="package")
def triton() -> Iterator[SmallTriton]:
    server = SmallTriton(["tiny-llama"])
    server.states["tiny-llama_engine"] = "READY"
    yield server
    server.kill()


@pytest.fixture(scope="package")
def stack(triton: SmallTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobStack]:
    folder = tmp_path_factory.mktemp("jobs")
    running = JobStack(folder, f"sqlite:///{folder / 'strata.db'}", triton.address,
                       STRATA_REQUESTS_PER_MINUTE="100000")
    yield running
    running.stop()


@pytest.fixture
def person(stack: JobStack) -> Person:
    return stack.person(10_000_000)
