"""Cold models through the whole frontend: four workers, a keeper and a Valkey, and a Triton of the protocol alone."""
from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from tests.paid import PATH, Paid, Person, body, until
from tests.small_triton import SmallTriton

#: Idle time before unloading, the least that the keeper knows.
IDLE = 5.0
#: Seconds that a request may take, not counting the load of its model nor that its Triton is away.
TIMEOUT = 6


@pytest.fixture(scope="module")
def triton() -> Iterator[SmallTriton]:
    server = SmallTriton(["tiny-llama"], warm="on_demand", idle_minutes=IDLE / 60)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def paid(triton: SmallTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paid]:
    folder = tmp_path_factory.mktemp("paid")
    running = Paid(folder, f"sqlite:///{folder / 'strata.db'}", triton.address, STRATA_REQUESTS_PER_MINUTE="100000",
                   STRATA_ACTIVE_REQUESTS="64", STRATA_WAITING_REQUESTS="400", STRATA_THREADS="600",
                   STRATA_REQUEST_TIMEOUT=str(TIMEOUT))
    yield running
    running.stop()


@pytest.fixture
def person(paid: Paid) -> Person:
    return paid.person(10_000_000)


@pytest.fixture
def cold(triton: SmallTriton, paid: Paid) -> SmallTriton:
    """The Triton, with the model Cold and nothing remembered of loads that failed."""
    until(lambda: triton.state("tiny-llama") in ("", "UNAVAILABLE"))
    time.sleep(0.5)
    for key in ("strata:failures", "strata:breakers"):
        paid.valkey.client.delete(key)
    triton.loads.clear()
    triton.unloads.clear()
    triton.broken.clear()
    triton.load_seconds, triton.token_seconds, triton.missed = 0.5, 0.0, 0
    return triton


def test_50_at_once_make_one_load_and_get_50_answers(cold: SmallTriton, person: Person) -> None:
    cold.load_seconds = 3.0
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: person.ask(), range(50)))
    assert Counter(answer.status_code for answer in answers) == {200: 50}
    assert cold.loads == ["tiny-llama"]
    assert cold.missed == 0
    shown = person.client.get("/v1/models/tiny-llama").json()
    assert (shown["state"], shown["estimated_seconds_to_warm"]) == ("warm", 0.0)


def test_50_at_once_hear_of_a_failed_load_and_the_next_works_once_its_cause_is_gone(
    paid: Paid, cold: SmallTriton, person: Person
) -> None:
    cold.load_seconds = 2.0
    cold.broken["tiny-llama"] = "OSError: no file named model.safetensors in /secret/place; No such file or directory"
    heard: list[float] = []

    def ask(_: int) -> httpx.Response:
        answer = person.ask()
        heard.append(time.monotonic())
        return answer

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(50)))
    errors = {(answer.status_code, answer.text) for answer in answers}
    assert len(errors) == 1, errors
    error = answers[0].json()["error"]
    assert (answers[0].status_code, error["code"]) == (503, "model_unavailable")
    assert "a part of its checkpoint is missing" in error["message"]
    assert "secret" not in error["message"]
    assert all(0 < one - cold.failed_at < 1 for one in heard), "within a second of the failure"
    assert cold.loads == ["tiny-llama"]
    assert paid.settled(person).charged == 0

    assert person.ask().status_code == 503  # the breaker is open, and nothing is tried
    assert cold.loads == ["tiny-llama"]
    cold.broken.clear()
    time.sleep(int(answers[0].headers["Retry-After"]))
    assert person.ask().status_code == 200
    assert cold.loads == ["tiny-llama"] * 2


@pytest.mark.slow
def test_a_model_under_a_trickle_is_unloaded_and_never_from_under_a_request(
    cold: SmallTriton, paid: Paid
) -> None:
    """Requests come about as far apart as the idle time is long, so that many meet an unload."""
    people = [paid.person(1_000_000) for _ in range(2)]
    ends = time.monotonic() + 45
    outcomes: list[int] = []

    def trickle(person: Person) -> None:
        chance = random.Random(person.account.id)
        while time.monotonic() < ends:
            outcomes.append(person.ask().status_code)
            time.sleep(chance.uniform(2 * IDLE - 1.0, 2 * IDLE + 1.5) if chance.random() < 0.7 else 0.2)

    threads = [threading.Thread(target=trickle, args=(person,)) for person in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) == {200}
    assert len(cold.unloads) >= 2
    assert cold.missed == 0


def test_a_client_that_leaves_gives_up_its_place_and_the_load_goes_on(
    paid: Paid, cold: SmallTriton, person: Person
) -> None:
    cold.load_seconds = 4.0
    with ThreadPoolExecutor(1) as pool:
        stays = pool.submit(person.ask)
        with suppress(httpx.ReadTimeout):
            person.client.post(PATH, json=body(), timeout=1.0)
        until(lambda: paid.valkey.client.zcard("strata:places:tiny-llama:queue") == 1, 2.5)
        assert stays.result().status_code == 200
    assert cold.loads == ["tiny-llama"]
    assert cold.missed == 0


def test_a_tokenizer_that_died_is_waited_for(cold: SmallTriton, person: Person) -> None:
    assert person.ask().status_code == 200  # its connection goes to a process that knows the model
    cold.states["tiny-llama_tokenizer"] = "UNAVAILABLE"
    assert person.ask().status_code == 200


def test_a_stream_that_waits_gets_comments_and_then_its_events(cold: SmallTriton, person: Person) -> None:
    """The wait is twice as long as a request may take, and the answer takes longer than what would be left."""
    cold.load_seconds, cold.token_seconds = 2.0 * TIMEOUT, 0.3
    with person.client.stream("POST", PATH, json=body(stream=True)) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line]
    assert lines[0].startswith(": waiting for tiny-llama")
    assert lines[-1] == "data: [DONE]"
    assert sum(line.startswith("data: {") for line in lines) == 8


def test_a_stream_that_waited_hears_of_a_failure_in_an_event(paid: Paid, cold: SmallTriton, person: Person) -> None:
    cold.load_seconds = 12.0
    cold.broken["tiny-llama"] = "CUDA out of memory"
    with person.client.stream("POST", PATH, json=body(stream=True)) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line]
    assert lines[0].startswith(": waiting")
    assert "model_unavailable" in lines[-1]
    assert "there is not enough memory for it" in lines[-1]
    assert paid.settled(person).charged == 0


def test_who_has_no_tokens_does_not_wait_to_hear_so(paid: Paid, cold: SmallTriton) -> None:
    assert paid.person(0).ask().status_code == 429


def test_a_triton_that_restarts_ends_streams_with_an_error_and_new_requests_wait_for_it(
    paid: Paid, cold: SmallTriton, person: Person
) -> None:
    assert person.ask().status_code == 200
    cold.token_seconds = 0.1
    with person.client.stream("POST", PATH, json=body(stream=True, max_tokens=600)) as answer:
        lines = answer.iter_lines()
        next(lines)
        cold.kill()
        rest = [line for line in lines if line]
    assert "inference_error" in rest[-1]
    cold.token_seconds = 0.3
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(person.ask) for _ in range(8)]
        time.sleep(TIMEOUT)
        assert not any(one.done() for one in waiting)
        cold.start()
        # They have all of their own time yet.
        assert Counter(one.result().status_code for one in waiting) == {200: 8}
    assert paid.settled(person).held == 0


@pytest.mark.slow
def test_a_second_keeper_stands_by_and_takes_over(paid: Paid, cold: SmallTriton, person: Person) -> None:
    second = paid.start_keeper()
    time.sleep(3)
    assert person.ask().status_code == 200
    assert cold.loads == ["tiny-llama"]
    paid.keeper.kill()
    paid.keeper.wait()
    paid.keeper = second
    until(lambda: cold.unloads)
    assert person.ask().status_code == 200
    assert cold.missed == 0
