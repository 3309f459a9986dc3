"""The whole application, with no Triton behind it."""
from __future__ import annotations

import pytest
from flask import Flask
from flask.testing import FlaskClient

from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.app import create_app
from frontend.db import Database
from frontend.settings import Settings
from tests.valkey import Valkey


@pytest.fixture
def redis_url(valkey: Valkey) -> str:
    return valkey.url


@pytest.fixture
def app(settings: Settings, database: Database) -> Flask:
    return create_app(settings)


@pytest.fixture
def anonymous(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def key(database: Database) -> str:
    return create_key(database, SYSTEM, create_account(database, SYSTEM, "ada@example.org"), "tests")[1]


@pytest.fixture
def client(app: Flask, key: str) -> FlaskClient:
    """A client that sends a good key."""
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return client
