"""Cases from public bug reports about systems that do the same job. Each asserts what is right, and its siblings."""
from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets.grants import give_grant
from frontend.db import Database
from tests import sse
from tests.engine import PUBLISHED_EVERY, STOPPED_WITHIN, ask_and_leave, metric, wait_until_idle, wait_until_left
from tests.stack import Stack

Json = dict[str, Any]
CASES = {case["name"]: case for case in json.loads(
    (Path(__file__).resolve().parents[1] / "cases" / "completions.json").read_text())}
#: What cases say in words, for tiny-llama, whose context is 2,048 tokens and which prefills 256 at a time.
SPELLED_OUT: dict[str, Json] = {
    "token prompt that ends inside a character": {"prompt": [128000, 9468]},
    "seeded prompt longer than one prefill chunk": {"prompt": [token % 1000 + 10 for token in range(1000)]},
    "client leaves before the first token": {"prompt": [token % 1000 + 10 for token in range(1500)]},
    "whole vocabulary over a long prompt": {"prompt": [100] * 1100},
}

#: Cases whose own requests only the tests made for them send, since they take another model, fewer tokens or a client
#: that leaves.
SENT_BELOW = {"empty text in a batch", "null max_tokens", "client leaves before the first token",
              "client leaves in mid-stream"}


def request(name: str, **more: Any) -> Json:
    """The case's own request, for tiny-llama unless told otherwise."""
    return {"model": "tiny-llama"} | CASES[name]["request"] | SPELLED_OUT.get(name, {}) | more


def complete(http: httpx.Client, body: Json) -> Json:
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert isinstance(result, dict)
    return result


def stream(http: httpx.Client, body: Json) -> list[Json]:
    answer = http.post("/v1/completions", json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    return sse.events(answer)


def refusal(http: httpx.Client, body: Json | str, code: str = "invalid_request") -> Json:
    content = body if isinstance(body, str) else json.dumps(body)
    answer = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("name", sorted(CASES.keys() - SENT_BELOW))
def test_a_case_is_answered_as_it_says(http: httpx.Client, name: str) -> None:
    """Word for word as the file has it; the others here look closer, and at siblings."""
    case = CASES[name]
    raw = "[" * 100_000 if name == "deep nesting" else case.get("raw") or json.dumps(request(name))
    answer = http.post("/v1/completions", content=raw, headers={"Content-Type": "application/json"})
    if not case["right"].startswith("400"):
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    for word in ("bad_json", "full_vocab_too_large"):
        assert (error["code"] == word) is (word in case["right"]) or name == "huge integer"
    if param := re.search(r"param (\w+)", case["right"]):
        assert error["param"] == param[1]


def test_the_words_of_cases_are_spelled_out() -> None:
    """Every other request is the file's own."""
    assert SPELLED_OUT.keys() < CASES.keys()
    for name, spelled in SPELLED_OUT.items():
        assert spelled.keys() == {"prompt"}
        assert isinstance(CASES[name]["request"]["prompt"], str)


def check_offsets(choice: Json) -> None:
    """Every visible token stands in the text where its offset says."""
    for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        hidden = token.startswith("<|") or offset == len(choice["text"])
        assert hidden or choice["text"][offset:].startswith(token), (token, offset, choice["text"])


def test_echo_with_logprobs_has_finite_json(http: httpx.Client) -> None:
    choice = complete(http, request("echo with logprobs has finite JSON"))["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    numbers = logprobs["token_logprobs"][1:] + [v for top in logprobs["top_logprobs"][1:] for v in top.values()]
    assert all(isinstance(number, float) and -9999.0 <= number <= 0 for number in numbers)
    check_offsets(choice)


def whole_vocabulary(http: httpx.Client, **fields: Any) -> dict[str, float]:
    """The log probability of every token by its id, at the first token of a completion."""
    body = request("echo with logprobs has finite JSON", echo=False, logprobs=-1, max_tokens=4, temperature=0, top_k=0,
                   return_tokens_as_token_ids=True, **fields)
    top = complete(http, body)["choices"][0]["logprobs"]["top_logprobs"][0]
    assert isinstance(top, dict)
    return top


def test_a_forbidden_token_keeps_its_own_log_probability(http: httpx.Client) -> None:
    """They are the model's own, from before anything is forbidden: so no field makes one that JSON can't hold."""
    free = whole_vocabulary(http)
    assert len(free) == 128_256
    likeliest = max(free, key=free.__getitem__).removeprefix("token_id:")
    word = http.post("/v1/detokenize", json={"model": "tiny-llama", "tokens": [int(likeliest)]}).json()["prompt"]
    for forbids in ({"allowed_token_ids": [5, 6]}, {"logit_bias": {likeliest: -100}}, {"bad_words": [word]},
                    {"min_tokens": 4, "stop_token_ids": [int(likeliest)]}):
        assert free == pytest.approx(whole_vocabulary(http, **forbids), abs=1e-4), forbids
    assert all(-9999.0 < value <= 0 for value in free.values())


@pytest.mark.parametrize("model", ["tiny-llama", "smollm2-135m"])
def test_streamed_echo_offsets_equal_unstreamed(http: httpx.Client, model: str) -> None:
    body = request("streamed echo offsets equal unstreamed", model=model)
    (streamed,) = sse.join(stream(http, body))
    whole = complete(http, body | {"stream": False})["choices"][0]
    assert streamed["text"] == whole["text"]
    assert whole["text"].startswith("The capital of France is")
    assert streamed["logprobs"]["tokens"] == whole["logprobs"]["tokens"]
    assert streamed["logprobs"]["text_offset"] == whole["logprobs"]["text_offset"]
    check_offsets(whole)


@pytest.mark.parametrize("text", ["🙂", "é", "日本", "👩‍👩‍👧"])
@pytest.mark.parametrize("model", ["tiny-llama", "smollm2-135m"])
def test_a_token_prompt_that_ends_inside_a_character(http: httpx.Client, model: str, text: str) -> None:
    ids = http.post("/v1/tokenize", json={"model": model, "prompt": text}).json()["tokens"]
    if len(ids) < 2:
        pytest.skip("one token holds the whole text, so no prefix of it ends inside a character")
    if (model, text) == ("tiny-llama", "🙂"):
        assert ids[:-1] == request("token prompt that ends inside a character")["prompt"]
    body = request("token prompt that ends inside a character", model=model, prompt=ids[:-1], return_token_ids=True)
    whole = complete(http, body)["choices"][0]
    (streamed,) = sse.join(stream(http, body))
    assert streamed["text"] == whole["text"]
    alone = http.post("/v1/detokenize", json={"model": model, "tokens": whole["token_ids"]}).json()["prompt"]
    assert whole["text"] == alone


def test_a_stop_string_across_chunks(http: httpx.Client) -> None:
    """The demo model continues the alphabet its own way: the case's stop string begins and does not complete."""
    body = request("stop string across chunks", model="smollm2-135m")
    free = complete(http, body | {"stream": False, "stop": None})["choices"][0]["text"]
    assert free.startswith(" I ")
    for stop in (" I J K L", free[:9], free[2:11]):
        shown = ""
        for chunk in stream(http, body | {"stop": stop}):
            shown += "".join(choice["text"] for choice in chunk["choices"])
            assert free.partition(stop)[0].startswith(shown)
        assert shown == free.partition(stop)[0]


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_no_event_shows_what_a_stop_string_takes_back(http: httpx.Client, length: int) -> None:
    """Siblings of the case, on text that the random model writes: every cut, and stops that almost complete."""
    base = request("stop string across chunks", stop=None, stream=False, max_tokens=24)
    free = complete(http, base)["choices"][0]["text"]
    for start in range(0, max(1, len(free) - length), 7):
        stop = free[start : start + length]
        if "\ufffd" in stop:
            continue
        chunks = stream(http, base | {"stop": [stop, stop + "never"], "stream": True})
        shown = ""
        for chunk in chunks:
            shown += "".join(choice["text"] for choice in chunk["choices"])
            assert free.partition(stop)[0].startswith(shown)
        assert shown == free.partition(stop)[0]


def test_a_stop_string_that_does_not_complete_gives_its_held_back_text(http: httpx.Client) -> None:
    base = request("stop string across chunks", stop=None, stream=False, max_tokens=8)
    free = complete(http, base)["choices"][0]["text"]
    (streamed,) = sse.join(stream(http, base | {"stop": free[-3:] + "x", "stream": True}))
    assert (streamed["text"], streamed["finish_reason"]) == (free, "length")


def test_two_ids_that_decode_alike(http: httpx.Client) -> None:
    body = request("two ids that decode alike", temperature=0)
    by_text = complete(http, body)["choices"][0]["logprobs"]
    by_id = complete(http, body | {"return_tokens_as_token_ids": True})["choices"][0]["logprobs"]
    for position, (texts, ids) in enumerate(zip(by_text["top_logprobs"], by_id["top_logprobs"], strict=True)):
        assert len(ids) >= 20
        assert len(texts) <= len(ids)
        names: dict[str, float] = {}
        for key, value in ids.items():
            token = int(key.removeprefix("token_id:"))
            if key == by_id["tokens"][position]:
                name = by_text["tokens"][position]
            else:
                name = http.post("/v1/detokenize", json={
                    "model": "tiny-llama", "tokens": [token]}).json()["prompt"]
            names[name] = max(value, names.get(name, value))
        assert texts == pytest.approx(names, abs=1e-4)


def test_two_ids_that_decode_alike_have_one_key_at_any_temperature(http: httpx.Client) -> None:
    logprobs = complete(http, request("two ids that decode alike"))["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 4
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert len(top) <= 21
        assert top[token] >= value - 1e-4


def test_ids_that_all_decode_alike_share_one_key(http: httpx.Client) -> None:
    """Llama 3 has a token for most single bytes; alone, those of a started character are all U+FFFD."""
    body = {"model": "tiny-llama", "prompt": "é", "max_tokens": 1, "temperature": 0, "logprobs": -1}
    by_id = complete(http, body | {"return_tokens_as_token_ids": True})["choices"][0]["logprobs"]["top_logprobs"][0]
    by_text = complete(http, body)["choices"][0]["logprobs"]["top_logprobs"][0]
    assert len(by_id) == 128256
    assert len(by_text) < len(by_id)
    alone = [i for i in range(128, 256) if http.post("/v1/detokenize", json={
        "model": "tiny-llama", "tokens": [i]}).json()["prompt"] == "\ufffd"]
    assert len(alone) > 60
    assert by_text["\ufffd"] >= max(by_id[f"token_id:{i}"] for i in alone) - 1e-6


def test_an_empty_text_in_a_batch(http: httpx.Client) -> None:
    error = refusal(http, request("empty text in a batch", model="smollm2-135m"))
    assert error["param"] == "prompt"
    answer = complete(http, request("empty text in a batch"))
    assert answer["usage"]["prompt_tokens"] == 1
    assert complete(http, {"model": "smollm2-135m", "prompt": "x", "max_tokens": 1})["choices"]


@pytest.mark.parametrize("prompt", [[], [[]], [[], [1]], [""]])
def test_prompts_without_tokens(http: httpx.Client, prompt: object) -> None:
    error = refusal(http, request("empty batch", model="smollm2-135m", prompt=prompt))
    assert error["param"] == "prompt"


@pytest.mark.parametrize(("name", "param", "words"), [
    ("negative token id", "prompt", ["-1"]),
    ("token id past the vocabulary", "prompt", ["999999999", "128256"]),
    ("logit_bias past the vocabulary", "logit_bias", ["999999"]),
    ("logit_bias keys that collide", "logit_bias", ["01"]),
    ("seed too large", "seed", []),
    ("stream_options without stream", "stream_options", []),
])
def test_what_is_refused(http: httpx.Client, name: str, param: str, words: list[str]) -> None:
    error = refusal(http, request(name))
    assert error["param"] == param
    assert all(word in error["message"] for word in words), error["message"]


@pytest.mark.parametrize("past", [128256, 2**31, 2**62])
@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_every_id_is_checked_against_the_vocabulary(http: httpx.Client, field: str, past: int) -> None:
    value = {str(past): 1} if field == "logit_bias" else [past]
    assert refusal(http, {"model": "tiny-llama", "prompt": "x", "max_tokens": 1} | {field: value})["param"] == field


@pytest.mark.parametrize("seed", [2**63, -1, 2**64])
def test_seeds_out_of_bounds(http: httpx.Client, seed: int) -> None:
    assert refusal(http, request("seed too large", seed=seed))["param"] == "seed"
    assert complete(http, request("seed too large", seed=2**63 - 1, max_tokens=1))["choices"]


def test_null_max_tokens(http: httpx.Client) -> None:
    """As if left out: the completion may fill the context, so it is stopped by a token here."""
    body = request("null max_tokens", temperature=0)
    assert body["max_tokens"] is None
    first = complete(http, body | {"max_tokens": 1, "return_token_ids": True})["choices"][0]["token_ids"][0]
    answer = complete(http, body | {"stop_token_ids": [first]})
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == first


def test_null_max_tokens_asks_for_what_the_context_leaves(stack: Stack) -> None:
    """Somebody with few tokens is told how much that was."""
    database = Database(f"sqlite:///{stack.home / 'strata.db'}")
    account = create_account(database, SYSTEM, "few-tokens@example.org")
    give_grant(database, SYSTEM, account.id, 12, "for tests")
    _, key = create_key(database, SYSTEM, account, "tests")
    database.close()
    answer = httpx.post(f"{stack.url}/v1/completions", headers={"Authorization": f"Bearer {key}"}, timeout=60,
                        json=request("null max_tokens"))
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Strata-Max-Tokens"] == "requested=2046, applied=10, reason=tokens"


def test_usage_in_a_stream(http: httpx.Client) -> None:
    *chunks, last = stream(http, request("usage in a stream"))
    assert chunks
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    usage = last["usage"]
    assert usage == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}


def test_empty_stream_options(http: httpx.Client) -> None:
    chunks = stream(http, request("empty stream_options"))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("name", ["duplicate key", "NaN in the body", "lone surrogate"])
def test_bodies_that_are_no_strict_json(http: httpx.Client, name: str) -> None:
    refusal(http, CASES[name]["raw"], "bad_json")


def test_a_huge_number(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=CASES["huge integer"]["raw"],
                       headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_deep_nesting(http: httpx.Client) -> None:
    refusal(http, "[" * 100_000, "bad_json")
    refusal(http, '{"a":' * 100_000, "bad_json")
    refusal(http, '{"model":"m","prompt":' + "[" * 100_000 + "]" * 100_000 + "}", "bad_json")


@pytest.mark.parametrize("tokens", [300, 1000])
def test_a_seeded_prompt_longer_than_one_prefill_chunk(http: httpx.Client, tokens: int) -> None:
    """tiny-llama prefills 256 tokens at a time."""
    own = request("seeded prompt longer than one prefill chunk", return_token_ids=True)
    body = own | {"prompt": own["prompt"][:tokens]}
    first, second = (complete(http, body)["choices"][0]["token_ids"] for _ in range(2))
    other = complete(http, body | {"seed": 2})["choices"][0]["token_ids"]
    assert first == second
    assert first != other


def check_nothing_goes_on(stack: Stack) -> None:
    """Once the client has gone, its tokens and its slot are free and the engine stops."""
    left = time.monotonic()
    wait_until_left(stack)
    assert time.monotonic() - left < STOPPED_WITHIN
    wait_until_idle(stack, "tiny-llama")
    assert time.monotonic() - left < STOPPED_WITHIN + PUBLISHED_EVERY


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_before_the_first_token(stack: Stack, http: httpx.Client, streamed: bool) -> None:
    """Sixteen of the case's long texts at once, so that none is there before the client has gone."""
    name, chance = "client leaves before the first token", random.Random()  # else the engine knows them from before
    prompts = [chance.choices(range(1, 1000), k=len(request(name)["prompt"])) for _ in range(16)]
    ask_and_leave(stack, http.headers, request(name, prompt=prompts, ignore_eos=True, stream=streamed))
    check_nothing_goes_on(stack)


@pytest.mark.parametrize("more", [{}, {"n": 16, "ignore_eos": True}], ids=["as it is", "with more to do"])
def test_a_client_that_leaves_in_mid_stream(stack: Stack, http: httpx.Client, more: Json) -> None:
    before = charged(http)
    with http.stream("POST", "/v1/completions", json=request("client leaves in mid-stream", **more)) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
    check_nothing_goes_on(stack)
    assert charged(http) - before > 2
    if more:
        assert charged(http) - before < 16 * 512


def charged(http: httpx.Client) -> int:
    """Tokens that were charged so far."""
    return int(http.get("/v1/usage").json()["tokens"]["charged"])


#: Fields beside the case's own, and what the refusal must say: caps are for all prompts and choices together.
TOO_MUCH: list[tuple[Json, list[str]]] = [
    ({}, ["1100", "1024"]),
    ({"prompt": [[100] * 600] * 2}, ["1200", "1024"]),
    ({"prompt": [100] * 600, "n": 2}, ["1200", "n × 600", "1024"]),
    ({"prompt": [[100] * 300] * 2, "n": 2}, ["1200", "n × 600", "1024"]),
    ({"prompt": [[100] * 300] * 2, "n": 2, "prompt_logprobs": 0, "logprobs": -1, "echo": True}, ["1200", "1024"]),
    ({"prompt": ["x", "y"], "n": 2, "prompt_logprobs": 0, "logprobs": -1, "max_tokens": 65}, ["260", "256", "64"]),
]


def test_the_whole_vocabulary_over_a_long_prompt(stack: Stack, http: httpx.Client) -> None:
    """It is refused before anything runs."""
    wait_until_idle(stack, "tiny-llama")
    time.sleep(1.5)  # the engine tells its figures about once a second
    ran = metric(stack, "strata_prompt_tokens_total", "tiny-llama")
    for fields, words in TOO_MUCH:
        body = request("whole vocabulary over a long prompt", **fields)
        error = refusal(http, body, "full_vocab_too_large")
        assert error["param"] == ("prompt_logprobs" if body["prompt_logprobs"] == -1 else "logprobs")
        assert all(word in error["message"] for word in words), error["message"]
    time.sleep(1.5)
    assert metric(stack, "strata_prompt_tokens_total", "tiny-llama") == ran


def test_every_case_has_a_test_here() -> None:
    """A case that is added to the file without a test would pass in silence."""
    source = Path(__file__).read_text()
    named = {name for name in CASES if f'"{name}"' in source}
    assert set(CASES) - named == set()
