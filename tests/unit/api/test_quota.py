"""Requests are counted per key, headers say what is left, and where nobody can count, nobody is let through."""
from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient

from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.app import create_app
from frontend.budgets.grants import give_grant
from frontend.budgets.usage import change_limits
from frontend.db import Database
from frontend.db.records import Account
from frontend.settings import Settings
from tests.unit.conftest import NOBODY

COMPLETION = {"model": "tiny-llama", "prompt": "x"}


@pytest.fixture
def account(database: Database) -> Account:
    account = create_account(database, SYSTEM, "grace@example.org")
    give_grant(database, SYSTEM, account.id, 5000, "")
    return account


def client_of(app: Flask, database: Database, account: Account, *scopes: str) -> FlaskClient:
    _, key = create_key(database, SYSTEM, account, "tests", frozenset(scopes or {"completions", "usage:read"}))
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return client


def test_headers_say_what_is_left(app: Flask, database: Database, account: Account) -> None:
    client = client_of(app, database, account)
    for left in (599, 598):
        for_it = client.post("/v1/tokenize", json=COMPLETION).headers
        assert for_it["x-ratelimit-limit-requests"] == "600"
        assert for_it["x-ratelimit-remaining-requests"] == str(left)
        assert 0 < float(for_it["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert for_it["x-ratelimit-remaining-tokens"] == "5000"


def test_answers_without_a_good_key_have_no_such_headers(app: Flask, anonymous: FlaskClient) -> None:
    for answer in (anonymous.get("/v1/usage"), anonymous.get("/healthz"), anonymous.post("/v1/chat/completions")):
        assert not [name for name, _ in answer.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/tokenize", "/v1/models", "/v1/usage"])
def test_a_key_that_asks_too_often_is_refused(app: Flask, database: Database, account: Account, path: str) -> None:
    change_limits(database, SYSTEM, account.id, requests_per_minute=2)
    client, other_key = (client_of(app, database, account) for _ in range(2))

    def ask(client: FlaskClient) -> str:
        answer = client.post(path, json=COMPLETION) if path not in ("/v1/models", "/v1/usage") else client.get(path)
        if answer.status_code != 429:
            return str(answer.status_code)
        assert int(answer.headers["Retry-After"]) in range(1, 61)
        assert 0 < int(answer.headers["retry-after-ms"]) <= 60_000
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        error = answer.get_json()["error"]
        return f"{error['type']} {error['code']}"

    passed = [ask(client), ask(client)]
    assert set(passed) <= {"200", "503"}
    assert ask(client) == "rate_limit_error rate_limited"
    assert ask(other_key) in passed


def test_a_request_that_is_no_request_does_not_count(app: Flask, database: Database, account: Account) -> None:
    client = client_of(app, database, account)
    client.post("/v1/completions", json={})
    assert client.get("/v1/usage").headers["x-ratelimit-remaining-requests"] == "599"


class TestWithoutRedis:
    """Redis is away."""

    @pytest.fixture
    def redis_url(self) -> str:
        return f"redis://{NOBODY}"

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/tokenize"])
    def test_nobody_is_let_through_uncounted(self, client: FlaskClient, path: str) -> None:
        answer = client.post(path, json=COMPLETION)
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (503, "unavailable")
        assert "counted" in answer.get_json()["error"]["message"]


class TestUsage:
    """GET /v1/usage."""

    def test_a_key_needs_the_scope(self, app: Flask, database: Database, account: Account) -> None:
        assert client_of(app, database, account, "completions").get("/v1/usage").status_code == 403
        assert client_of(app, database, account, "usage:read").get("/v1/usage").get_json() == {
            "object": "usage", "tokens": {"granted": 5000, "available": 5000, "held": 0, "charged": 0}, "days": []}

    def test_an_account_sees_its_own_alone(self, client: FlaskClient, account: Account) -> None:
        assert client.get("/v1/usage").get_json()["tokens"]["granted"] == 0

    @pytest.mark.parametrize("query", ["days=0", "days=367", "days=x", "days=1.0", "days=+1", "days=1&days=2", "dys=1",
                                       "days="])
    def test_a_query_is_strict(self, client: FlaskClient, query: str) -> None:
        answer = client.get(f"/v1/usage?{query}")
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (400, "invalid_request")

    def test_as_many_days_as_are_asked_for(self, client: FlaskClient) -> None:
        assert client.get("/v1/usage?days=366").status_code == 200


class TestLockedDatabase:
    """Somebody keeps SQLite's write lock."""

    @pytest.fixture
    def locked(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr("frontend.db.engine.PATIENCE", 0)
        may_end, has = threading.Event(), threading.Event()

        def keep() -> None:
            with database.write():
                has.set()
                may_end.wait(30)

        thread = threading.Thread(target=keep)
        thread.start()
        assert has.wait(30)
        yield
        may_end.set()
        thread.join()

    def test_reading_goes_on(self, settings: Settings, key: str, locked: None) -> None:
        client = create_app(settings).test_client()
        assert client.get("/v1/usage", headers={"Authorization": f"Bearer {key}"}).status_code == 200
