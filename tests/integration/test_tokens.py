"""Tokens over HTTP: exactly as many requests as fit, lowered max_tokens, and charges that equal `usage`."""
from __future__ import annotations

import csv
import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from backends.llama_vllm.slab import Layout, SlabWriter
from frontend.accounts.api_keys import list_keys
from frontend.accounts.audit import SYSTEM
from frontend.budgets.usage import change_limits, export_usage, write_csv
from frontend.db.token_records import Balance
from frontend.limits.slots import Concurrency, Slots
from frontend.spend.limits import EVERYTHING, set_spend_limit
from tests.engine import metric, wait_until_idle
from tests.integration.test_failures import STUB, find
from tests.paid import PATH, Paid, Person, body, until
from tests.postgres import Postgres
from tests.stack import Stack

PROMPT = 4
#: The end-of-text token of tiny-llama.
END = 128001

@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def paid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Iterator[Paid]:
    """Four workers whose limits are wide, since tokens are what is tested."""
    folder = tmp_path_factory.mktemp("paid")
    url = f"sqlite:///{folder / 'strata.db'}"
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.new_database()
    running = Paid(folder, url, stack.grpc, STRATA_REQUESTS_PER_MINUTE="100000", STRATA_ACTIVE_REQUESTS="64",
                   STRATA_WAITING_REQUESTS="400", STRATA_THREADS="600")
    yield running
    running.stop()


def code(answer: httpx.Response) -> str:
    return "ok" if answer.status_code == 200 else answer.json()["error"]["code"]


@pytest.mark.slow  # half a minute on two cores
@pytest.mark.parametrize("keys", [1, 2])
def test_200_at_once_on_an_allowance_for_50(paid: Paid, keys: int) -> None:
    person = paid.person(50 * (PROMPT + 16))
    people = [person, *(paid.key_of(person.account) for _ in range(keys - 1))]
    done = threading.Event()

    def watch() -> int:
        looks = 0
        while not done.is_set():
            now = paid.books(person)
            assert now.charged + now.held <= now.granted
            looks += 1
            done.wait(0.005)
        return looks

    with ThreadPoolExecutor(201) as pool:
        watching = pool.submit(watch)
        together = threading.Barrier(200)

        def ask(number: int) -> httpx.Response:
            together.wait()
            return people[number % keys].ask(max_tokens=16, min_tokens=16)

        answers = list(pool.map(ask, range(200)))
        done.set()
        assert watching.result() > 0
    assert Counter(map(code, answers)) == {"ok": 50, "budget_exceeded": 150}
    assert {answer.headers.get("x-should-retry") for answer in answers if answer.status_code == 429} == {"false"}
    assert paid.settled(person) == Balance(1000, 0, 0, 1000)


def test_the_last_tokens(paid: Paid) -> None:
    person = paid.person(PROMPT + 4)
    answer = person.ask(n=4, max_tokens=100, temperature=1)
    assert answer.headers["X-Strata-Max-Tokens"] == "requested=100, applied=1, reason=tokens"
    assert [choice["finish_reason"] for choice in answer.json()["choices"]] == ["length"] * 4
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
    assert paid.settled(person) == Balance(8, 0, 0, 8)

    poorer = paid.person(PROMPT + 3)
    refused = poorer.ask(n=4, max_tokens=100)
    assert (refused.status_code, refused.json()["error"]["type"], code(refused)) == (
        429, "insufficient_quota", "budget_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "7"
    assert paid.settled(poorer) == Balance(7, 7, 0, 0)


def test_max_tokens_left_out_is_lowered_too_and_a_stream_says_so(paid: Paid) -> None:
    person = paid.person(PROMPT + 10)
    asked = body(stream=True)
    del asked["max_tokens"]
    answer = person.client.post(PATH, json=asked)
    assert answer.headers["X-Strata-Max-Tokens"] == "requested=2044, applied=10, reason=tokens"
    assert paid.settled(person) == Balance(14, 0, 0, 14)


def test_enough_tokens_change_nothing(paid: Paid) -> None:
    answer = paid.person(1000).ask()
    assert "X-Strata-Max-Tokens" not in answer.headers
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(1000 - PROMPT - 8)


def test_min_tokens_is_never_cut(paid: Paid) -> None:
    person = paid.person(PROMPT + 9)
    assert code(person.ask(max_tokens=20, min_tokens=10)) == "budget_exceeded"
    answer = person.ask(max_tokens=20, min_tokens=9)
    assert answer.headers["X-Strata-Max-Tokens"] == "requested=20, applied=9, reason=tokens"


def test_without_a_grant_nothing_runs(paid: Paid) -> None:
    assert code(paid.person(0).ask()) == "budget_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_a_charge_is_what_usage_says(paid: Paid, stream: bool) -> None:
    person = paid.person(100_000)
    total = 0
    for fields in ({}, {"n": 3, "temperature": 1}, {"prompt": ["a b c", "d"], "max_tokens": 3}, {"prompt": [1, 2, 3]},
                   {"echo": True, "logprobs": 2}, {"prompt_logprobs": 1}, {"max_tokens": 60, "ignore_eos": False}):
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = person.ask(**fields, **more)
        assert answer.status_code == 200
        last = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: ")) if stream else answer.json()
        total += last["usage"]["total_tokens"]
    assert paid.settled(person).charged == total


@pytest.mark.parametrize(("fields", "status"), [
    ({"bad_words": [" "]}, 400), ({"model": "gpt-4"}, 404), ({"prompt": ""}, 200), ({"max_tokens": 5000}, 400),
])
def test_what_is_refused_costs_nothing(paid: Paid, fields: dict[str, object], status: int) -> None:
    person = paid.person(1000)
    answer = person.ask(**fields)
    assert answer.status_code == status
    assert paid.settled(person).charged == (0 if status != 200 else answer.json()["usage"]["total_tokens"])


def test_activations_of_a_position_that_was_never_reached_cost_nothing(paid: Paid) -> None:
    person = paid.person(1000)
    answer = person.ask(max_tokens=12, allowed_token_ids=[64, END], logit_bias={"64": 20}, min_tokens=3,
                        stop=["aaaa"], temperature=0, ignore_eos=False,
                        activations={"layers": [0], "positions": [12]})
    assert "position 12" in failure(answer, stream=False)["message"]
    cost_nothing(paid, person, 1000)


@pytest.mark.parametrize("stream", [False, True])
def test_activations_that_could_not_be_captured_cost_nothing(paid: Paid, stack: Stack, stream: bool) -> None:
    """What a worker says of a slab that it can't write, said of this request's while it runs."""
    person = paid.person(10_000)
    engine = find(stack, lambda command: STUB in command, above="tiny-llama_engine")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(person.ask, max_tokens=300, stream=stream, activations={"layers": [0]})
        until(lambda: slabs(engine) or asked.done())
        (slab,) = slabs(engine)
        SlabWriter(slab, Layout(303, 1, 64, "float32")).fail("the disk of a worker broke")
        answer = asked.result()
    assert "the disk of a worker broke" in failure(answer, stream)["message"]
    cost_nothing(paid, person, 10_000)


def slabs(engine: psutil.Process) -> list[Path]:
    """The slabs of an engine's requests in flight: its process holds their folder open."""
    links = [link.readlink() for link in Path(f"/proc/{engine.pid}/fd").iterdir() if link.exists()]
    (folder,) = {link for link in links if link.name.startswith("strata-slabs-")}
    return list(folder.iterdir())


def failure(answer: httpx.Response, stream: bool) -> dict[str, str]:
    """The error of an answer, which a stream has as its last event, after tokens."""
    if stream:
        assert answer.status_code == 200
        first, *_, last = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: ")]
        assert first["choices"][0]["text"]
    else:
        assert answer.status_code == 502
        last = answer.json()
    error = last["error"]
    assert (error["type"], error["code"]) == ("server_error", "inference_error")
    assert isinstance(error, dict)
    return error


def cost_nothing(paid: Paid, person: Person, tokens: int) -> None:
    assert paid.settled(person) == Balance(tokens, tokens, 0, 0)
    (record,) = export_usage(paid.database, person.account.id)
    assert (record.status, record.charged) == (502, 0)


def test_who_leaves_in_mid_stream_pays_for_what_was_produced(paid: Paid, stack: Stack) -> None:
    person = paid.person(10_000)
    with person.client.stream("POST", PATH, json=body(max_tokens=1900, stream=True)) as answer:
        lines = answer.iter_lines()
        for _ in range(10):
            next(lines)
        assert paid.books(person).held == PROMPT + 1900
    charged = paid.settled(person).charged
    assert PROMPT < charged < PROMPT + 1900
    (record,) = export_usage(paid.database, person.account.id)
    assert (record.status, record.settled_by, record.charged) == (499, "request", charged)
    wait_until_idle(stack, "tiny-llama")


@pytest.mark.parametrize(("prompts", "n"), [(1, 1), (1, 3), (2, 1)])
def test_who_leaves_before_a_whole_answer_pays_for_what_was_produced_too(
    paid: Paid, stack: Stack, prompts: int, n: int
) -> None:
    person, choices = paid.person(100_000), prompts * n
    wait_until_idle(stack, "tiny-llama")
    before = metric(stack, "strata_generation_tokens_total", "tiny-llama")
    asked = body(prompt=["The sky is"] * prompts, n=n, temperature=1, max_tokens=1900)
    with pytest.raises(httpx.ReadTimeout):
        person.client.post(PATH, json=asked, timeout=1.5)
    charged = paid.settled(person).charged
    wait_until_idle(stack, "tiny-llama")
    generated = metric(stack, "strata_generation_tokens_total", "tiny-llama") - before
    (record,) = export_usage(paid.database, person.account.id)
    assert (record.status, record.prompt_tokens) == (499, prompts * PROMPT)
    assert charged == record.prompt_tokens + record.completion_tokens
    # Some steps may have run while the request was being ended.
    assert 0 < generated - 10 * choices <= record.completion_tokens <= generated < 1900 * choices


def test_who_leaves_before_the_first_token_pays_nothing_and_frees_everything(paid: Paid, stack: Stack) -> None:
    """Behind another's prefill of many long prompts, so that no token comes in time."""
    person, other = paid.person(1_000_000), paid.person(1_000_000)
    chance = random.Random()  # else the engine knows them from the other database's run
    prompts = [chance.choices(range(1, 200), k=2000) for _ in range(24)]
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(other.client.post, PATH, json=body(prompt=prompts, max_tokens=1), timeout=120)
        until(lambda: paid.books(other).held)
        time.sleep(0.5)  # and its prompts are at the engine
        with pytest.raises(httpx.ReadTimeout):
            person.client.post(PATH, json=body(prompt=chance.choices(range(1, 200), k=2000), max_tokens=1),
                               timeout=1)
        assert paid.settled(person).charged == 0
        assert not before.done()
        assert before.result().status_code == 200
    wait_until_idle(stack, "tiny-llama")


def test_usage_by_day_and_model_and_its_export_sum_up_to_the_ledger(paid: Paid) -> None:
    person = paid.person(10_000)
    for number in range(3):
        person.ask(user=f"=run {number}")
    report = person.client.get("/v1/usage").json()
    each = PROMPT + 8
    assert report["tokens"] == {"granted": 10_000, "available": 10_000 - 3 * each, "held": 0, "charged": 3 * each}
    assert report["days"] == [{
        "day": time.strftime("%Y-%m-%d", time.gmtime()), "model": "tiny-llama", "requests": 3, "prompt_tokens": 12,
        "completion_tokens": 24, "total_tokens": 3 * each, "charged": 3 * each}]
    out = io.StringIO()
    write_csv(export_usage(paid.database, person.account.id), out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert sum(int(row["charged"]) for row in rows) == paid.books(person).charged == 3 * each
    assert [row["user"] for row in rows] == ["'=run 0", "'=run 1", "'=run 2"]
    assert "sky" not in out.getvalue()


def test_the_sdk_does_not_repeat_what_tokens_or_spend_refuse(paid: Paid) -> None:
    def sdk(person: Person) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{paid.frontend.url}/v1", api_key=person.key, max_retries=3)

    def arrived(which: str) -> float:
        return paid.frontend.total("strata_requests_total", code=which)

    before = arrived("budget_exceeded")
    with pytest.raises(openai.RateLimitError) as caught:
        sdk(paid.person(3)).completions.create(model="tiny-llama", prompt="The sky is", max_tokens=1)
    assert caught.value.code == "budget_exceeded"
    assert arrived("budget_exceeded") == before + 1

    person, running = paid.person(10_000), paid.person(10_000)
    before = arrived("spend_cap")
    with running.client.stream("POST", PATH, json=body(max_tokens=500, stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        set_spend_limit(paid.database, SYSTEM, EVERYTHING, 0)
        try:
            with pytest.raises(openai.RateLimitError) as caught:
                sdk(person).completions.create(model="tiny-llama", prompt="The sky is", max_tokens=1)
            assert caught.value.code == "spend_cap"
            assert arrived("spend_cap") == before + 1
            assert "data: [DONE]" in list(lines)  # what runs, finishes
        finally:
            set_spend_limit(paid.database, SYSTEM, EVERYTHING, None)
    assert paid.settled(person).charged == 0
    assert paid.settled(running).charged == PROMPT + 500
    assert person.ask().status_code == 200


def test_the_sdk_waits_as_long_as_a_rate_limit_says(paid: Paid) -> None:
    """Left to itself it would try again after half a second at most, and the fourth time after three at least."""
    person = paid.person(10_000)
    change_limits(paid.database, SYSTEM, person.account.id, active=1, waiting=0)
    (key,) = list_keys(paid.database, person.account)
    sent: list[float] = []
    refused: list[tuple[float, str, str, str]] = []

    def note(answer: httpx.Response) -> None:
        if answer.status_code == 429:
            error = json.loads(answer.read())["error"]
            refused.append((time.monotonic(), error["type"], answer.headers["Retry-After"],
                            answer.headers["retry-after-ms"]))

    client = httpx.Client(event_hooks={"request": [lambda _: sent.append(time.monotonic())], "response": [note]})
    sdk = openai.OpenAI(base_url=f"{paid.frontend.url}/v1", api_key=person.key, max_retries=60, http_client=client)
    with ThreadPoolExecutor(1) as pool:
        with Slots(paid.valkey.client).slot(key.id, Concurrency(1, 0), 5, lambda _: None):
            asking = pool.submit(sdk.completions.create, model="tiny-llama", prompt="The sky is", max_tokens=1)
            until(lambda: len(refused) == 4)
        assert len(asking.result().choices) == 1  # once the slot is free
    assert {tuple(said) for _, *said in refused} == {("rate_limit_error", "1", "1000")}
    waited = [again - told for (told, *_), again in zip(refused, sent[1:], strict=False)]
    assert len(waited) == len(refused) >= 4
    assert min(waited) >= 1
    assert waited[3] < 3
