"""Fixtures for unit tests: real parts, with no Triton behind them, and no Redis but for tests that ask for one."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from redis import Redis

from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.limits.store import connect
from frontend.settings import Settings
from tests.valkey import Valkey

# A machine that is busy with other work makes no example wrong.
hypothesis.settings.register_profile("unit", deadline=None)
hypothesis.settings.load_profile("unit")

#: Nothing listens on the discard port of these machines, so a connection is refused at once.
NOBODY = "127.0.0.1:9"


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """An empty database: a SQLite of its own, unless tests override this."""
    return f"sqlite:///{tmp_path / 'strata.db'}"


@pytest.fixture
def redis_url() -> str:
    """A Redis that is away, unless tests override this."""
    return f"redis://{NOBODY}"


@pytest.fixture
def settings(tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    """Settings of an installation of its own."""
    return Settings(
        port=8080, public_url="http://127.0.0.1:8080", trusted_proxies=0, home=tmp_path, database_url=database_url,
        redis_url=redis_url,
        triton_urls=(NOBODY,), models=("tiny-llama",), metrics_address=("127.0.0.1", 9), max_body_bytes=2**20,
        max_job_bytes=50 * 2**20,
        max_total_tokens=32_000, request_timeout_seconds=5, load_timeout_seconds=0.5, max_loaded=None,
        requests_per_minute=600, active_requests=16,
        waiting_requests=64, workers=2, threads=256, hold_lease_seconds=30,
        job_storage=f"file://{tmp_path / 'storage'}", job_days=30, log_level="info",
    )


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    """A fresh database, up to date."""
    database = Database(settings.database_url)
    migrate(database)
    yield database
    database.close()


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A Valkey that a test may kill."""
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture
def redis(own_valkey: Valkey) -> Redis:
    """A client of that Valkey."""
    return connect(own_valkey.url)
