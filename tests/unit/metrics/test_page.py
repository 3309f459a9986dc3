"""The metrics page: one path on an address of its own."""
from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from sqlalchemy import insert

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.spend_tables import engine_uptime, spend_limits
from frontend.db.token_tables import holds, usage_records
from frontend.metrics.figures import DatabaseFigures
from frontend.metrics.page import AddressInUse, listen, serve
from frontend.metrics.warmth import WarmthFigures
from frontend.warmth.records import Records
from frontend.warmth.scripts import Scripts, Ticket
from tests.frontend import samples
from tests.valkey import Valkey


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'strata.db'}"


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    listener = listen("127.0.0.1", 0)
    serve(listener, [DatabaseFigures(database)])
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


#: What the page says of Jobs where there are none.
NO_JOBS = {
    **{("strata_jobs", status): 0 for status in ("queued", "running", "paused")},
    **{("strata_job_requests_open", state): 0 for state in ("queued", "running")},
    **{("strata_job_requests_total", status): 0 for status in ("completed", "failed")},
    ("strata_job_retries_total",): 0, ("strata_jobs_oldest_waiting_seconds",): 0,
}


def figures(url: str) -> dict[tuple[str, ...], float]:
    page = httpx.get(f"{url}/metrics").raise_for_status()
    assert list(text_string_to_metric_families(page.text))
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples(page.text)}


def test_there_is_one_path(url: str) -> None:
    assert httpx.get(f"{url}/metrics").headers["content-type"].startswith("text/plain")
    for path in ("/", "/favicon.ico", "/metrics/", "/v1/models", "/healthz"):
        assert httpx.get(url + path).status_code == 404
    assert httpx.post(f"{url}/metrics").status_code == 405


def test_a_reader_that_says_nothing_keeps_nobody_waiting(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))):
        assert httpx.get(f"{url}/metrics").status_code == 200


def test_an_address_in_use_is_said_in_one_line(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    for address in ((host, int(port)), ("nowhere.invalid", 9100)):
        with pytest.raises(AddressInUse, match="STRATA_METRICS_ADDRESS") as raised:
            listen(*address)
        assert "\n" not in str(raised.value)


def test_nothing_is_held_or_spent_at_first(url: str) -> None:
    assert figures(url) == {("strata_database_up",): 1, ("strata_holds_expired_total",): 0,
                            ("strata_spend_month_dollars", "*"): 0, **NO_JOBS}


def add_hold(database: Database, account: Account, number: int, model: str, amount: int) -> None:
    with database.write() as connection:
        connection.execute(insert(holds).values(
            id=f"hold_{number}", account_id=account.id, key_id="key_x", model=model, route="/v1/completions",
            amount=amount, prompt_tokens=1, beat=0, created_at=account.created_at))


def test_holds_and_spend_are_the_databases(url: str, database: Database) -> None:
    ada = create_account(database, SYSTEM, "ada@example.org")
    for number, (model, amount) in enumerate((("a", 10), ("a", 20), ("b", 5))):
        add_hold(database, ada, number, model, amount)
    this_month = ada.created_at.strftime("%Y-%m")
    hour = 3_600_000
    with database.write() as connection:
        for number, settled_by in enumerate(("keeper", "request", "keeper")):
            connection.execute(insert(usage_records).values(
                id=f"use_{number}", account_id=ada.id, key_id="key_x", at=ada.created_at, day="2026-01-31", model="a",
                route="/v1/completions", prompt_tokens=1, completion_tokens=1, charged=2, activation_bytes=0,
                status=200, settled_by=settled_by))
        for month, price, milliseconds in ((this_month, 4_000_000, hour), (this_month, 6_000_000, hour // 2),
                                           ("2020-01", 1_000_000, 10 * hour)):
            connection.execute(insert(engine_uptime).values(
                model="a", month=month, price=price, milliseconds=milliseconds))
        connection.execute(insert(spend_limits).values(scope="*", amount=50_000_000))
        connection.execute(insert(spend_limits).values(scope="a", amount=8_750_000))  # of which 7 is 80 %
    assert figures(url) == {
        ("strata_database_up",): 1, ("strata_holds_expired_total",): 2,
        ("strata_holds_open", "a"): 2, ("strata_holds_open", "b"): 1,
        ("strata_tokens_held", "a"): 30, ("strata_tokens_held", "b"): 5,
        ("strata_spend_dollars_total", "a"): 17,
        ("strata_spend_month_dollars", "*"): 7, ("strata_spend_month_dollars", "a"): 7,
        ("strata_spend_limit_dollars", "*"): 50, ("strata_spend_limit_dollars", "a"): 8.75,
        ("strata_spend_limit_near", "*"): 0, ("strata_spend_limit_near", "a"): 1, **NO_JOBS,
    }


def test_a_database_that_is_away_leaves_the_page(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0)
    serve(listener, [DatabaseFigures(Database(f"sqlite:///{tmp_path / 'nowhere' / 'strata.db'}"))])
    assert figures(f"http://127.0.0.1:{listener.getsockname()[1]}") == {("strata_database_up",): 0}
    listener.close()


def test_places_and_loads_are_on_the_page_while_redis_is_there(own_valkey: Valkey, redis: Redis) -> None:
    listener = listen("127.0.0.1", 0)
    serve(listener, [WarmthFigures(redis, ("a", "b"), {"a": ("one:1", "two:1"), "b": ("one:1",)})])
    records = Records(redis)
    records.succeed("a", "one:1", 2.0)
    records.succeed("a", "one:1", None)  # there was nothing to load
    records.fail("b", "one:1", "no memory", 5.0, 1)
    scripts = Scripts(redis)
    scripts.keep("process", [])
    for number, warm in enumerate((["one:1"], ["two:1"], ["one:1"], [])):
        scripts.enter("process", Ticket(f"process:{number}", "a", "ada", ""), 2, 10, 10.0, warm)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert figures(url) == {
        ("strata_redis_up",): 1, ("strata_model_loads_total", "a", "succeeded"): 1,
        ("strata_model_loads_total", "b", "failed"): 1,
        ("strata_model_requests", "a", "active"): 3, ("strata_model_requests", "b", "active"): 0,
        ("strata_model_requests", "a", "waiting"): 1, ("strata_model_requests", "b", "waiting"): 0,
    }
    own_valkey.kill()
    assert figures(url) == {("strata_redis_up",): 0}
    listener.close()
