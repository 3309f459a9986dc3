"""People and keys are the same on both databases."""
from __future__ import annotations

from pathlib import Path

import pytest

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.db import Database
from frontend.db.records import Account


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'strata.db'}"


@pytest.fixture
def ada(database: Database) -> Account:
    return create_account(database, SYSTEM, "ada@example.org")


@pytest.fixture
def eve(database: Database) -> Account:
    return create_account(database, SYSTEM, "eve@example.org")
