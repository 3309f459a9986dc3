"""`strata models`: against a Triton of the protocol alone, and a real Valkey."""
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from frontend.accounts.audit import list_events
from frontend.warmth.records import Records
from tests.small_triton import SmallTriton
from tests.unit.cli.conftest import Strata
from tests.valkey import Valkey


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    server = SmallTriton(["tiny-llama"])
    yield server
    server.kill()


@pytest.fixture
def run(strata: Strata, triton: SmallTriton, valkey: Valkey) -> Any:
    valkey.client.flushall()

    def call(*args: str, code: int = 0) -> str:
        done = strata("models", *args, STRATA_TRITON_URLS=triton.address, STRATA_REDIS_URL=valkey.url,
                      STRATA_MODELS="tiny-llama")
        assert done.exit_code == code, done.stderr
        return done.stdout or done.stderr

    return call


def test_the_list_shows_each_triton(run: Any, triton: SmallTriton, valkey: Valkey) -> None:
    records = Records(valkey.client)
    records.succeed("tiny-llama", triton.address, 30.0)
    records.fail("tiny-llama", triton.address, "there is not enough memory for it", 5, 1)
    assert json.loads(run("list", "--json")) == [{
        "model": "tiny-llama", "triton": triton.address, "state": "cold", "drained": False, "active": 0, "waiting": 0,
        "estimated_seconds_to_warm": 30.0, "failure": "there is not enough memory for it"}]
    triton.states["tiny-llama_engine"] = "READY"
    assert "warm" in run("list")


def test_wishes_go_to_the_keeper_and_into_the_audit_log(run: Any, strata: Strata, valkey: Valkey) -> None:
    run("load", "tiny-llama")
    assert Records(valkey.client).asked() == {"tiny-llama": "load"}
    refusal = run("unload", "tiny-llama", code=1)
    assert "Its policy keeps tiny-llama Warm now" in refusal
    run("policy", "tiny-llama", "--warm", "on_demand")
    assert json.loads(run("unload", "tiny-llama", "--json")) == {"model": "tiny-llama", "asked_for": "unload"}
    assert Records(valkey.client).asked() == {"tiny-llama": "unload"}
    assert [event.action for event in list_events(strata.database)] == ["model:load", "model:policy", "model:unload"]
    assert "Invalid value for 'MODEL': 'gpt-2' is not one of 'llama-8b'," in run("load", "gpt-2", code=2)


def test_a_policy_is_changed_in_parts_shown_and_reset(run: Any, strata: Strata) -> None:
    def shown(*args: str) -> dict[str, Any]:
        (policy,) = json.loads(run("policy", "llama-8b", *args, "--json"))
        return policy

    of_catalog = {"model": "llama-8b", "warm": "on_demand", "idle_minutes": 30, "warm_windows": [], "changed": False}
    assert shown() == of_catalog
    assert shown("--idle-minutes", "45") == {**of_catalog, "idle_minutes": 45, "changed": True}
    window = "Mon-Fri 08:00-18:00 Europe/Berlin"
    assert shown("--window", window)["warm_windows"] == [window]
    assert shown("--warm", "always") == {
        "model": "llama-8b", "warm": "always", "idle_minutes": 45, "warm_windows": [window], "changed": True}
    assert shown("--no-windows")["warm_windows"] == []
    assert shown("--reset") == of_catalog
    assert {event.action for event in list_events(strata.database)} == {"model:policy"}


@pytest.mark.parametrize(("args", "code", "words"), [
    (("--idle-minutes", "0"), 1, "above 0"), (("--window", "sometimes"), 1, "is no warm window"),
    (("--window", "08:00-09:00 Mars"), 1, "is no time zone"), (("--reset", "--warm", "always"), 2, "no other option"),
    (("--no-windows", "--window", "x"), 2, "exclude"), (("--warm", "never"), 2, "is not one of"),
])
def test_what_is_no_policy(run: Any, args: tuple[str, ...], code: int, words: str) -> None:
    assert words in run("policy", "llama-8b", *args, code=code)


def test_a_triton_is_drained_and_back(run: Any, triton: SmallTriton, strata: Strata, valkey: Valkey) -> None:
    run("drain", triton.address)
    assert Records(valkey.client).drained() == {triton.address}
    assert json.loads(run("list", "--json"))[0]["drained"] is True
    undone = run("drain", triton.address, "--undo", "--json")
    assert json.loads(undone) == {"triton": triton.address, "drained": False}
    assert Records(valkey.client).drained() == set()
    assert [event.action for event in list_events(strata.database)] == ["triton:drain", "triton:undrain"]
    assert triton.address in run("drain", "elsewhere:1", code=2)
