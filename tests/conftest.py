"""Fixtures for every test: one real Strata for the whole run, and the clients that people use against it."""
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.postgres import NotInstalled, Postgres
from tests.stack import Stack
from tests.valkey import Valkey

# Each Strata that a test starts has a home of its own, but what vLLM learns about its classes is the same for all.
os.environ.setdefault(
    "VLLM_CACHE_ROOT", str(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vllm"))

# Tritons of the protocol alone run on gRPC's threads in this process. Where it starts another, gRPC's care for forks
# once let that one stand still before it became a keeper; who becomes another program at once needs none.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where converted checkpoints lie; STRATA_CHECKPOINTS lets runs share them."""
    return Path(os.environ.get("STRATA_CHECKPOINTS") or tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Iterator[Stack]:
    """Strata with both models that need no hub, started once for the whole run."""
    running = Stack.start(tmp_path_factory.mktemp("home"), "smollm2-135m,tiny-llama", checkpoints)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def http(stack: Stack) -> Iterator[httpx.Client]:
    """A plain HTTP client that sends the demo key."""
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def client(stack: Stack) -> openai.OpenAI:
    """The openai SDK as people use it."""
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, timeout=120, max_retries=0)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL, started once for the whole run."""
    try:
        server = Postgres.start()
    except NotInstalled as error:
        if os.environ.get("CI"):
            pytest.fail(f"continuous integration tests PostgreSQL too, and there is none: {error}")
        pytest.skip(f"there is no PostgreSQL: {error}")
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """An empty PostgreSQL database for one test."""
    url = postgres.take_database()
    yield url
    postgres.give_back(url)


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """A Valkey, started once for the whole run. Tests that break it start one of their own."""
    server = Valkey()
    yield server
    server.stop()
