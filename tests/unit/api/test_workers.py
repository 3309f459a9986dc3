"""Keys at a real gunicorn with several workers: what an admin does counts for every request that starts afterwards."""
from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from frontend.accounts.api_keys import create_key, list_keys, revoke_key, rotate_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account, set_disabled
from frontend.budgets.grants import give_grant
from frontend.db import Database
from frontend.db.records import Account, ApiKey
from tests.frontend import Frontend
from tests.stack import REPOSITORY
from tests.valkey import Valkey

WORKERS, CLIENTS = 3, 8


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres").new_database())
    return f"sqlite:///{tmp_path_factory.mktemp('database') / 'strata.db'}"


@pytest.fixture(scope="module")
def frontend(url: str, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    running = Frontend.start(tmp_path_factory.mktemp("home"), WORKERS, STRATA_DATABASE_URL=url,
                             STRATA_REDIS_URL=valkey.url, STRATA_REQUESTS_PER_MINUTE="1000000")
    yield running
    running.stop()


@pytest.fixture
def database(url: str, frontend: Frontend) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()


@dataclass(frozen=True)
class Seen:
    """One request: when it began and ended, by the monotonic clock, and its status."""

    began: float
    ended: float
    status: int


class Burst:
    """Several clients that ask with one key as fast as they can, each over a connection that it keeps."""

    def __init__(self, frontend: Frontend, secret: str) -> None:
        self.seen: list[Seen] = []
        self._port, self._headers = frontend.port, {"Authorization": f"Bearer {secret}"}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self) -> Burst:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, count: int, status: int) -> None:
        """Wait until so many more requests ended with a status."""
        first, deadline = len(self.seen), time.monotonic() + 60
        while sum(seen.status == status for seen in self.seen[first:]) < count:
            assert time.monotonic() < deadline, {seen.status for seen in self.seen[first:]}
            time.sleep(0.01)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._over.is_set():
            began = time.monotonic()
            connection.request("GET", "/v1/usage", headers=self._headers)
            answer = connection.getresponse()
            answer.read()
            self.seen.append(Seen(began, time.monotonic(), answer.status))


def by_command(database: Database, *args: str) -> None:
    """Act as an admin does: with a process of its own."""
    url = database.engine.url.render_as_string(hide_password=False)
    subprocess.run([sys.executable, "-m", "frontend", *args], cwd=REPOSITORY, check=True, capture_output=True,
                   env={**os.environ, "STRATA_DATABASE_URL": url})


ACTS: dict[str, Callable[[Database, Account, ApiKey], object]] = {
    "revoked": lambda database, _, key: revoke_key(database, SYSTEM, key.id),
    "revoked by command": lambda database, _, key: by_command(database, "keys", "revoke", key.id),
    "rotated without overlap": lambda database, _, key: rotate_key(database, SYSTEM, key.id, timedelta(0)),
    "of a disabled account": lambda database, account, _: set_disabled(database, SYSTEM, account, True),
}


@pytest.mark.parametrize("act", ACTS)
def test_no_request_passes_that_starts_after_the_key_was(frontend: Frontend, database: Database, act: str) -> None:
    account = create_account(database, SYSTEM, f"{act.replace(' ', '-')}@example.org")
    key, secret = create_key(database, SYSTEM, account, "burst")
    with Burst(frontend, secret) as burst:
        burst.wait_for(50, 200)
        ACTS[act](database, account, key)
        done = time.monotonic()
        burst.wait_for(100, 401)
    statuses = {seen.status for seen in burst.seen}
    late = [seen for seen in burst.seen if seen.began > done]
    assert statuses == {200, 401}
    assert len(late) >= 100 - CLIENTS
    assert {seen.status for seen in late} == {401}


def ask(frontend: Frontend, secret: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=60)
    connection.request("GET", "/v1/usage", headers={"Authorization": f"Bearer {secret}"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_both_keys_work_while_a_rotation_overlaps(frontend: Frontend, database: Database) -> None:
    account = create_account(database, SYSTEM, "overlap@example.org")
    key, old = create_key(database, SYSTEM, account, "laptop")
    with Burst(frontend, old) as burst:
        burst.wait_for(50, 200)
        rotated, _, new = rotate_key(database, SYSTEM, key.id, timedelta(seconds=3))
        assert rotated.expires_at is not None
        ends = time.monotonic() + (rotated.expires_at - datetime.now(UTC)).total_seconds()
        with Burst(frontend, new) as newer:
            burst.wait_for(50, 200)
            burst.wait_for(50, 401)
            newer.wait_for(50, 200)
    assert {seen.status for seen in newer.seen} == {200}
    assert {seen.status for seen in burst.seen if seen.ended < ends - 0.1} == {200}
    assert {seen.status for seen in burst.seen if seen.began > ends + 0.1} == {401}


def test_an_enabled_account_gets_its_keys_back_but_not_the_revoked(frontend: Frontend, database: Database) -> None:
    account = create_account(database, SYSTEM, "back@example.org")
    _, good = create_key(database, SYSTEM, account, "good")
    revoked, bad = create_key(database, SYSTEM, account, "bad")
    revoke_key(database, SYSTEM, revoked.id)
    set_disabled(database, SYSTEM, account, True)
    assert {ask(frontend, secret)[0] for secret in (good, bad) for _ in range(2 * WORKERS)} == {401}
    set_disabled(database, SYSTEM, account, False)
    assert {ask(frontend, good)[0] for _ in range(2 * WORKERS)} == {200}
    assert {ask(frontend, bad)[0] for _ in range(2 * WORKERS)} == {401}


def test_two_people_see_their_own_tokens_alone(frontend: Frontend, database: Database) -> None:
    for name, amount in (("one", 111), ("other", 222)):
        account = create_account(database, SYSTEM, f"{name}@example.org")
        give_grant(database, SYSTEM, account.id, amount, "x")
        _, secret = create_key(database, SYSTEM, account, name)
        status, body = ask(frontend, secret)
        assert (status, body["tokens"]) == (200, {"granted": amount, "available": amount, "held": 0, "charged": 0})


def test_the_last_use_is_noted_once_for_a_burst_over_all_workers(frontend: Frontend, database: Database) -> None:
    account = create_account(database, SYSTEM, "busy@example.org")
    _, secret = create_key(database, SYSTEM, account, "busy")
    with Burst(frontend, secret) as burst:
        burst.wait_for(20, 200)
        (first,) = list_keys(database, account)
        burst.wait_for(50, 200)
    (last,) = list_keys(database, account)
    assert first.last_used_at is not None
    assert last.last_used_at == first.last_used_at
