"""A Triton of the protocol alone, and all of Jobs in front of it."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.inference import Inference
from frontend.jobs.storage import Storage
from frontend.jobs.tools import Tools
from frontend.limits.store import connect
from frontend.settings import Settings
from frontend.warmth.places import Places
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


@pytest.fixture
def tools(settings: Settings, database: Database) -> Tools:
    """What a worker works with, with no Redis and no Triton."""
    redis, inference = connect(settings.redis_url), Inference(("127.0.0.1:9",))
    return Tools(settings, database, inference, Places(redis, inference, 1, of_jobs=True), Leases(database, 30),
                 Storage(settings.job_storage))
