"""`strata grants`, `strata requests`, `strata usage` and `strata spend`."""
from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert

from frontend.accounts.audit import Actor
from frontend.budgets.clamp import Need
from frontend.budgets.holds import Ending, Order, settle, take_hold
from frontend.budgets.token_requests import ask_for_tokens
from frontend.db import balances
from frontend.db.token_tables import usage_records
from frontend.spend.uptime import count_uptime
from tests.stack import REPOSITORY
from tests.unit.cli.conftest import Strata


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'home' / 'strata.db'}"


@pytest.fixture
def ada(strata: Strata) -> str:
    """The id of a member's account."""
    return str(strata.json("users", "create", "ada@example.org")["id"])


def use(strata: Strata, account_id: str, number: int, model: str = "tiny-llama", user: str | None = None) -> None:
    """Let a request of 3 + 4 tokens have run."""
    database = strata.database
    take_hold(database, Order(f"req_{number}", account_id, "key_x", model, "/v1/completions", user, Need(3, 1, 10)))
    assert settle(database, f"req_{number}", Ending(200, True, True, 4, 12))
    database.close()


def test_a_grant_is_given_and_listed(strata: Strata, ada: str) -> None:
    assert "probing paper" in strata.ok("grants", "add", "ada@example.org", "5000000", "--note", "probing paper")
    given = strata.json("grants", "add", "ADA@example.org", "7", "--note", "é ☃", "--expires", "2099-01-31")
    assert (given["account_id"], given["amount"], given["note"]) == (ada, 7, "é ☃")
    assert given["expires_at"] == "2099-01-31T00:00:00+00:00"
    assert [grant["amount"] for grant in strata.json("grants", "list", "ada@example.org")] == [5_000_000, 7]
    strata.ok("users", "create", "eve@example.org")
    assert strata.json("grants", "list", "eve@example.org") == []
    assert "ada@example.org" in strata.ok("grants", "list")
    assert strata.json("usage", "show", "ada@example.org")["balance"] == {
        "granted": 5_000_007, "available": 5_000_007, "held": 0, "charged": 0}
    (event, _) = strata.json("audit", "list", "--action", "grant:add", "--account", "ada@example.org")
    assert (event["actor"][:4], event["details"]["tokens"], event["details"]["note"]) == (
        "cli:", 5_000_000, "probing paper")


@pytest.mark.parametrize(("amount", "more"), [
    ("0", ()), ("-5", ()), ("10000000000000000", ()), ("1" + "0" * 30, ()), ("5", ("--expires", "2020-01-01"))])
def test_what_is_no_grant_is_refused(strata: Strata, ada: str, amount: str, more: tuple[str, ...]) -> None:
    strata.refused("grants", "add", "--note", "x", *more, "--", "ada@example.org", amount)
    assert strata.json("grants", "list") == []


def test_a_grant_needs_a_person_a_number_and_a_note(strata: Strata, ada: str) -> None:
    assert "no account" in strata.refused("grants", "add", "eve@example.org", "5", "--note", "x")
    for args in (("ada@example.org", "5"), ("ada@example.org", "many", "--note", "x"), ("ada@example.org", "2.5",
                 "--note", "x"), ("ada@example.org", "--note", "x")):
        assert strata("grants", "add", *args).exit_code == 2


def test_text_that_cannot_be_stored_is_refused_in_one_line(strata: Strata, ada: str) -> None:
    strata.refused("grants", "add", "ada@example.org", "5", "--note", "a\udcffb")


def test_a_request_is_decided_once(strata: Strata, ada: str) -> None:
    person = Actor(ada, "192.0.2.7")
    asks = [ask_for_tokens(strata.database, person, ada, 100 * n, f"reason {n}") for n in (1, 2, 3)]
    assert [ask["id"] for ask in strata.json("requests", "list")] == [ask.id for ask in asks]
    grant = strata.json("requests", "approve", asks[0].id)
    assert (grant["account_id"], grant["amount"], grant["note"]) == (ada, 100, "reason 1")
    grant = strata.json("requests", "approve", asks[1].id, "--tokens", "50", "--note", "half of it")
    assert (grant["amount"], grant["note"]) == (50, "half of it")
    assert strata.json("requests", "reject", asks[2].id, "--note", "not now")["status"] == "rejected"
    for ask in asks:
        assert "before" in strata.refused("requests", "approve", ask.id)
        assert "before" in strata.refused("requests", "reject", ask.id, "--note", "x")
    assert "no request" in strata.refused("requests", "approve", "ask_x")
    assert strata.json("usage", "show", "ada@example.org")["balance"]["granted"] == 150
    assert strata.json("requests", "list", "--status", "open") == []
    (rejected,) = strata.json("requests", "list", "--status", "rejected", "--account", "ada@example.org")
    assert (rejected["id"], rejected["note"]) == (asks[2].id, "not now")
    assert "not now" in strata.ok("requests", "list")
    assert [event["action"] for event in strata.json("audit", "list", "--account", "ada@example.org")][1:] == [
        "request:make", "request:make", "request:make", "grant:add", "request:approve", "grant:add", "request:approve",
        "request:reject"]


def test_the_exports_sum_is_the_ledgers(strata: Strata, ada: str) -> None:
    strata.ok("users", "create", "eve@example.org")
    eve = strata.json("users", "list")[1]["id"]
    for email in ("ada@example.org", "eve@example.org"):
        strata.ok("grants", "add", email, "1000", "--note", "x")
    for number in range(5):
        use(strata, ada, number, user='=cmd|" /C calc"!A0,\n' if number == 0 else None)
    use(strata, eve, 6)
    rows = list(csv.DictReader(io.StringIO(strata.ok("usage", "export"))))
    assert len(rows) == 6
    with strata.database.read() as connection:
        charges = [balances.ledger_sums(connection, account)["charge"] for account in (ada, eve)]
    assert sum(int(row["charged"]) for row in rows) == -sum(charges) == 42
    assert rows[0]["user"].startswith("'=cmd")
    of_ada = strata.json("usage", "export", "--account", "ada@example.org")
    assert sum(record["charged"] for record in of_ada) == -charges[0]
    assert {record["account_id"] for record in of_ada} == {ada}
    assert strata.json("usage", "export", "--since", "2099-01-01") == []
    assert strata.ok("usage", "export", "--until", "2020-01-01").count("\n") == 1
    exports = strata.json("audit", "list", "--action", "usage:export")
    assert [(event["subject"], event["account_id"]) for event in exports][:2] == [("*", None), (ada, ada)]


def test_a_persons_usage_by_day(strata: Strata, ada: str) -> None:
    strata.ok("grants", "add", "ada@example.org", "1000", "--note", "x")
    for number in range(3):
        use(strata, ada, number)
    shown = strata.json("usage", "show", "ada@example.org")
    assert shown["balance"] == {"granted": 1000, "available": 979, "held": 0, "charged": 21}
    assert [(day["model"], day["requests"], day["charged"]) for day in shown["days"]] == [("tiny-llama", 3, 21)]
    assert "1000 granted = 979 available + 0 held + 21 charged" in strata.ok("usage", "show", "ada@example.org")


def test_spend_is_shown_and_limited(strata: Strata) -> None:
    strata.ok("spend", "limit", "500")
    strata.ok("spend", "limit", "120.50", "--model", "llama-8b")
    with strata.database.write() as connection:
        count_uptime(connection, "llama-8b", 3.0, timedelta(hours=2))
    shown = {row["scope"]: row for row in strata.json("spend", "show")}
    assert (shown["llama-8b"]["limit"], shown["*"]["limit"]) == (120.5, 500)
    month = datetime.now(UTC).strftime("%Y-%m")
    assert shown["*"]["month"] == month
    if datetime.now(UTC).day > 1:
        assert shown["llama-8b"]["dollars"] == shown["*"]["dollars"] == pytest.approx(6, abs=0.01)
    strata.ok("spend", "limit", "none", "--model", "llama-8b")
    assert {row["scope"]: row["limit"] for row in strata.json("spend", "show")} == {"llama-8b": None, "*": 500}
    assert "500.00" in strata.ok("spend", "show", "--month", month)
    assert [event["details"] for event in strata.json("audit", "list", "--action", "spend_limit:set")] == [
        {"dollars": 500.0}, {"dollars": 120.5}, {"dollars": None}]
    for args in (("much",), ("-5",), ("nan",), ("5", "--model", "lama-8b"), ()):
        assert strata("spend", "limit", *args).exit_code == 2
    assert strata("spend", "show", "--month", "2026-13").exit_code == 2


def test_a_persons_limits(strata: Strata, ada: str) -> None:
    assert strata.json("users", "limit", "ada@example.org") == {
        "requests_per_minute": None, "active": None, "waiting": None}
    strata.ok("users", "limit", "ada@example.org", "--active", "64", "--waiting", "0")
    assert strata.json("users", "limit", "ada@example.org", "--requests-per-minute", "6000") == {
        "requests_per_minute": 6000, "active": 64, "waiting": 0}
    assert strata.json("users", "limit", "ada@example.org", "--active", "default")["active"] is None
    assert "default" in strata.ok("users", "limit", "ada@example.org")
    assert "from 1" in strata.refused("users", "limit", "ada@example.org", "--active", "0")
    assert strata("users", "limit", "ada@example.org", "--active", "many").exit_code == 2
    assert len(strata.json("audit", "list", "--action", "limits:set")) == 3


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_reader_that_leaves_is_no_error(strata: Strata, ada: str) -> None:
    columns = {"account_id": ada, "key_id": "key_x", "at": datetime.now(UTC), "day": "2026-01-31",
               "model": "tiny-llama", "route": "/v1/completions", "prompt_tokens": 3, "completion_tokens": 4,
               "charged": 7, "activation_bytes": 0, "status": 200, "settled_by": "request"}
    with strata.database.write() as connection:  # more than a pipe holds
        connection.execute(insert(usage_records), [{"id": f"req_{number}", **columns} for number in range(1500)])
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m frontend usage export | head -1"], cwd=REPOSITORY, text=True,
        env={**os.environ, "STRATA_HOME": str(strata.home), "STRATA_DATABASE_URL": strata.database_url},
        capture_output=True, check=True)
    assert done.stdout.startswith("id,at,account_id")
    assert done.stderr == ""
