"""People, keys and metrics with real completions: an admin's commands count at once, and what ran is counted."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import httpx
import pytest

from frontend.accounts.audit import SYSTEM
from frontend.budgets.usage import change_limits, export_usage
from frontend.spend.limits import EVERYTHING, set_spend_limit
from tests import sse
from tests.paid import PATH, Paid, Person, body, until
from tests.stack import REPOSITORY, Stack

PROMPT = 4
CLIENTS = 6


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Iterator[Paid]:
    folder = tmp_path_factory.mktemp("people")
    running = Paid(folder, f"sqlite:///{folder / 'strata.db'}", stack.grpc, STRATA_REQUESTS_PER_MINUTE="100000")
    yield running
    running.stop()


def strata(paid: Paid, *args: str, stdin: str = "") -> str:
    """Run a command as an admin does, and return what it prints."""
    done = subprocess.run([sys.executable, "-m", "frontend", *args], cwd=REPOSITORY, input=stdin, text=True, check=True,
                          capture_output=True, env={**os.environ, "STRATA_HOME": str(paid.folder), **paid.environment})
    return done.stdout


def test_from_nothing_to_a_completion_by_commands(paid: Paid) -> None:
    strata(paid, "users", "create", "ada@example.org", "--password-stdin", stdin="correct horse\n")
    key = strata(paid, "keys", "create", "ada@example.org", "--name", "laptop").strip()
    headers = {"Authorization": f"Bearer {key}"}
    poor = httpx.post(paid.frontend.url + PATH, json=body(), headers=headers, timeout=120)
    assert (poor.status_code, poor.json()["error"]["code"]) == (429, "budget_exceeded")
    strata(paid, "grants", "add", "ada@example.org", "100", "--note", "a start")
    answer = httpx.post(paid.frontend.url + PATH, json=body(), headers=headers, timeout=120)
    assert answer.status_code == 200
    assert answer.json()["usage"]["total_tokens"] == PROMPT + 8
    assert "88 available" in strata(paid, "usage", "show", "ada@example.org")
    assert strata(paid, "usage", "export", "--account", "ada@example.org").count("\n") == 2


@dataclass(frozen=True)
class Seen:
    """One request: when it began, by the monotonic clock, and its status."""

    began: float
    status: int


@pytest.mark.parametrize("stream", [False, True])
def test_no_completion_passes_that_starts_after_its_key_was_revoked(paid: Paid, stream: bool) -> None:
    person = paid.person(10**6)
    (key,) = [line.split()[0] for line in strata(paid, "keys", "list", person.account.email).splitlines()[1:]]
    seen: list[Seen] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            began = time.monotonic()
            seen.append(Seen(began, person.ask(max_tokens=2, stream=stream).status_code))

    def count(status: int, since: float = 0.0) -> int:
        return sum(one.status == status and one.began > since for one in seen)

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        until(lambda: count(200) >= 40)
        strata(paid, "keys", "revoke", key)
        revoked = time.monotonic()
        until(lambda: count(401, since=revoked) >= 100)
    finally:
        over.set()
        for client in clients:
            client.join()
    late = {one.status for one in seen if one.began > revoked}
    assert late == {401}
    assert {one.status for one in seen} == {200, 401}
    assert paid.settled(person).charged == count(200) * (PROMPT + 2)


def test_what_ran_is_what_is_counted(paid: Paid) -> None:
    total = paid.frontend.total
    names = ("strata_tokens_total", "strata_first_token_seconds_count", "strata_request_seconds_count",
             "strata_requests_total")
    before = {name: total(name, model="tiny-llama") for name in names}
    person = paid.person(10_000)
    for stream in (False, True, True):
        assert person.ask(stream=stream).status_code == 200
    assert person.ask(max_tokens=10**4).json()["error"]["code"] == "context_length_exceeded"
    assert person.ask(temperature=3).json()["error"]["code"] == "invalid_request"
    assert person.ask(model="made-up").status_code == 404
    until(lambda: total("strata_requests_total", model="tiny-llama") >= before["strata_requests_total"] + 4)
    after = {name: total(name, model="tiny-llama") for name in names}
    assert {name: after[name] - before[name] for name in names} == {
        "strata_tokens_total": 3 * (PROMPT + 8), "strata_first_token_seconds_count": 2,
        "strata_request_seconds_count": 4, "strata_requests_total": 4}
    assert total("strata_requests_total", model="tiny-llama", code="context_length_exceeded", status="400") == 1
    assert "made-up" not in httpx.get(paid.frontend.metrics_url, timeout=30).text


def test_a_client_that_leaves_is_counted_as_gone(paid: Paid) -> None:
    person = paid.person(10_000)
    before = paid.frontend.total("strata_requests_total", code="client_gone", route=PATH)
    with person.client.stream("POST", PATH, json=body(max_tokens=400, stream=True)) as answer:
        lines = answer.iter_lines()  # httpx closes a stream whose iterator nobody holds
        next(lines)
        until(lambda: paid.frontend.total("strata_requests_active") == 1)
        assert paid.frontend.total("strata_holds_open", model="tiny-llama") == 1
        assert paid.frontend.total("strata_tokens_held", model="tiny-llama") == PROMPT + 400
    until(lambda: paid.frontend.total("strata_requests_total", code="client_gone", route=PATH) == before + 1)
    until(lambda: paid.frontend.total("strata_holds_open") + paid.frontend.total("strata_requests_active") == 0)


@contextmanager
def too_many_a_minute(paid: Paid) -> Iterator[Person]:
    """Somebody who may start no request now."""
    person = paid.person(10_000)
    change_limits(paid.database, SYSTEM, person.account.id, requests_per_minute=1)
    assert person.ask().status_code == 200
    yield person


@contextmanager
def too_many_at_once(paid: Paid) -> Iterator[Person]:
    """Somebody who may run no more."""
    person = paid.person(10_000)
    change_limits(paid.database, SYSTEM, person.account.id, active=1, waiting=0)
    with person.client.stream("POST", PATH, json=body(max_tokens=1900, stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield person


@contextmanager
def no_tokens(paid: Paid) -> Iterator[Person]:
    """Somebody who has none."""
    yield paid.person(0)


@contextmanager
def at_the_spend_limit(paid: Paid) -> Iterator[Person]:
    """Somebody who may spend no more, as all."""
    set_spend_limit(paid.database, SYSTEM, EVERYTHING, 0)
    try:
        yield paid.person(10_000)
    finally:
        set_spend_limit(paid.database, SYSTEM, EVERYTHING, None)


@pytest.mark.parametrize(("limit", "code", "somebody"), [
    ("tokens", "budget_exceeded", no_tokens), ("requests_per_minute", "rate_limited", too_many_a_minute),
    ("concurrency", "rate_limited", too_many_at_once), ("spend", "spend_cap", at_the_spend_limit)])
def test_limits_that_refuse_are_counted_each_by_itself(
    paid: Paid, limit: str, code: str, somebody: Callable[[Paid], AbstractContextManager[Person]]
) -> None:
    def hits() -> dict[str, float]:
        found = {"tokens": 0.0, "requests_per_minute": 0.0, "concurrency": 0.0, "spend": 0.0}
        for sample in paid.frontend.samples():
            if sample.name == "strata_limits_hit_total":
                found[sample.labels["limit"]] += sample.value
        return found

    before = hits()
    refusals = paid.frontend.total("strata_requests_total", status="429", code=code)
    with somebody(paid) as person:
        answer = person.ask()
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, code)
        until(lambda: paid.frontend.total("strata_requests_total", status="429", code=code) == refusals + 1)
        assert hits() == {**before, limit: before[limit] + 1}


@pytest.mark.parametrize("streamed", [False, True])
def test_usage_says_how_many_bytes_of_activations_there_were(paid: Paid, streamed: bool) -> None:
    person = paid.person(10_000)
    answer = person.ask(stream=streamed, activations={"layers": [0, 2], "dtype": "float32"})
    found = sse.events(answer) if streamed else [answer.json()]
    (got,) = [choice["activations"] for event in found for choice in event["choices"] if "activations" in choice]
    layers, positions, hidden = got["shape"]
    assert (layers, positions) == (2, PROMPT + 8 - 1)
    paid.settled(person)
    (record,) = export_usage(paid.database, person.account.id)
    assert record.activation_bytes == 2 * positions * hidden * 4 > 0
    row = strata(paid, "usage", "export", "--account", person.account.email).splitlines()[1]
    assert f",{record.activation_bytes},200," in row


def test_a_worker_that_dies_leaves_its_counts_and_its_hold_expires(paid: Paid) -> None:
    person = paid.person(10_000)
    before = {name: paid.frontend.total(name) for name in ("strata_requests_total", "strata_holds_expired_total")}
    with pytest.raises(httpx.TransportError), person.client.stream(  # noqa: PT012
            "POST", PATH, json=body(max_tokens=400, stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        paid.worker_of(answer).kill()
        for _ in lines:
            pass
    until(lambda: paid.frontend.total("strata_holds_expired_total") == before["strata_holds_expired_total"] + 1)
    until(lambda: paid.frontend.total("strata_holds_open") + paid.frontend.total("strata_requests_active") == 0)
    assert paid.frontend.total("strata_requests_total") >= before["strata_requests_total"]
