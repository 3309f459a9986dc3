"""What people do first: the openai SDK, tokens, batches, several choices, repeatable sampling."""
from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from backports import zstd

from tests import sse


def test_the_demo_model_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smollm2-135m", prompt="The capital of France is", max_tokens=1,
                                       temperature=0)
    assert answer.choices[0].text == " Paris"
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert len(answer.id) >= len("cmpl-") + 24
    assert answer.system_fingerprint == client.models.retrieve("smollm2-135m").fingerprint  # type: ignore[attr-defined]


def test_the_sky_is_four_tokens(client: openai.OpenAI, http: httpx.Client) -> None:
    text = client.completions.create(model="tiny-llama", prompt="The sky is", max_tokens=8, temperature=0)
    assert text.usage is not None
    assert text.usage.prompt_tokens == 4
    ids = http.post("/v1/tokenize", json={"model": "tiny-llama", "prompt": "The sky is"}).json()["tokens"]
    assert len(ids) == 4
    by_ids = client.completions.create(model="tiny-llama", prompt=ids, max_tokens=8, temperature=0)
    assert by_ids.usage == text.usage
    assert by_ids.choices[0].text == text.choices[0].text


def test_the_sdk_streams(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="smollm2-135m", prompt="Once upon a time", max_tokens=12, temperature=0)
    parts = list(client.completions.create(model="smollm2-135m", prompt="Once upon a time", max_tokens=12,
                                           temperature=0, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert parts[-1].choices[0].finish_reason == "length"
    assert len(parts) > 1


def test_prompts_times_n_choices_in_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny-llama", prompt=["a b", "c d", "e f"], n=2, max_tokens=3, seed=5,
                                       echo=True)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text[:3] for choice in answer.choices] == ["a b", "a b", "c d", "c d", "e f", "e f"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 9
    assert answer.usage.completion_tokens <= 18
    assert answer.choices[0].text != answer.choices[1].text


def test_a_seed_repeats_and_its_absence_does_not(client: openai.OpenAI) -> None:
    def sample(**more: Any) -> str:
        return client.completions.create(model="tiny-llama", prompt="x", max_tokens=8, **more).choices[0].text

    assert sample(seed=3) == sample(seed=3)
    assert sample(seed=3) != sample(seed=4)
    assert sample() != sample()


def test_whole_vocabulary_is_a_distribution(http: httpx.Client) -> None:
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 2, "temperature": 0, "prompt_logprobs": -1,
            "logprobs": -1, "return_tokens_as_token_ids": True}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    few = http.post("/v1/completions", json=body | {"prompt_logprobs": 3, "logprobs": 3}).json()["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    for entry, some in zip(choice["prompt_logprobs"][1:], few["prompt_logprobs"][1:], strict=True):
        assert len(entry) == 128256
        assert sum(2.718281828459045 ** member["logprob"] for member in entry.values()) == pytest.approx(1, abs=1e-3)
        for token, member in some.items():
            assert entry[token]["logprob"] == pytest.approx(member["logprob"], abs=1e-4)
            assert entry[token]["rank"] == member["rank"]
    for top, some in zip(choice["logprobs"]["top_logprobs"], few["logprobs"]["top_logprobs"], strict=True):
        assert len(top) == 128256
        assert sum(2.718281828459045 ** value for value in top.values()) == pytest.approx(1, abs=1e-3)
        assert some == pytest.approx({key: top[key] for key in some}, abs=1e-4)


def test_whole_vocabulary_rows_may_come_ahead_of_their_tokens(http: httpx.Client) -> None:
    """More rows than one response of the engine holds, which is 32 of this vocabulary."""
    body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 40, "logprobs": -1, "ignore_eos": True, "seed": 1}
    logprobs = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    few = http.post("/v1/completions", json=body | {"logprobs": 0}).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == few["tokens"]
    assert logprobs["token_logprobs"] == pytest.approx(few["token_logprobs"], abs=1e-4)


def test_a_whole_vocabulary_stream_is_compressed_event_by_event(http: httpx.Client) -> None:
    body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 3, "logprobs": -1, "ignore_eos": True, "stream": True}
    answer = http.post("/v1/completions", json=body, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    (choice,) = sse.join(sse.events(answer))
    assert [len(top) > 100_000 for top in choice["logprobs"]["top_logprobs"]] == [True] * 3
    with http.stream("POST", "/v1/completions", json=body, headers={"Accept-Encoding": "zstd"}) as packed:
        text = zstd.decompress(b"".join(packed.iter_raw()))
    assert text.startswith(b"data: {")
    assert text.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("coding", ["identity", "gzip", "zstd"])
def test_a_whole_vocabulary_answer_comes_in_the_coding_that_was_asked_for(http: httpx.Client, coding: str) -> None:
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 1, "temperature": 0, "prompt_logprobs": -1}
    with http.stream("POST", "/v1/completions", json=body, headers={"Accept-Encoding": coding}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers.get("Content-Encoding", "identity") == coding
    magic = {"identity": b"{", "gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}[coding]
    assert raw.startswith(magic)
    assert "Accept-Encoding" in answer.headers["Vary"]


def test_prompt_logprobs_come_with_the_first_event_alone(http: httpx.Client) -> None:
    body = {"model": "tiny-llama", "prompt": ["The sky is", "x"], "max_tokens": 5, "temperature": 0,
            "prompt_logprobs": 1, "return_token_ids": True, "stream": True, "ignore_eos": True}
    seen: set[int] = set()
    for chunk in sse.events(http.post("/v1/completions", json=body)):
        for choice in chunk["choices"]:
            first = choice["index"] not in seen
            assert ("prompt_logprobs" in choice, "prompt_token_ids" in choice) == (first, first)
            seen.add(choice["index"])
    assert seen == {0, 1}


@pytest.mark.parametrize(("fields", "reason", "stop_reason"), [
    ({"max_tokens": 2, "ignore_eos": True}, "length", None),
    ({"max_tokens": 4, "allowed_token_ids": [128001]}, "stop", None),
    ({"max_tokens": 4, "allowed_token_ids": [65], "stop_token_ids": [65]}, "stop", 65),
    ({"max_tokens": 4, "allowed_token_ids": [65], "min_tokens": 2, "stop": ["bb"]}, "stop", "bb"),
])
def test_why_a_choice_ended(http: httpx.Client, fields: dict[str, Any], reason: str, stop_reason: object) -> None:
    choice = http.post("/v1/completions", json={"model": "tiny-llama", "prompt": "x"} | fields).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == (reason, stop_reason)


def test_bad_words_do_not_appear(http: httpx.Client) -> None:
    body = {"model": "smollm2-135m", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    free = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert "Paris" in free
    bad = http.post("/v1/completions", json=body | {"bad_words": ["Paris"]}).json()["choices"][0]["text"]
    assert "Paris" not in bad


@pytest.mark.parametrize("fields", [
    {"allowed_token_ids": [2], "bad_words": ["#"]}, {"allowed_token_ids": [128001], "min_tokens": 3},
    {"allowed_token_ids": [65, 66], "stop_token_ids": [66, 65], "min_tokens": 1},
], ids=str)
def test_allowed_tokens_that_something_else_forbids_are_refused(http: httpx.Client, fields: dict[str, Any]) -> None:
    """The engine would choose token 0, which nobody allowed."""
    answer = http.post("/v1/completions", json={"model": "tiny-llama", "prompt": "x", "max_tokens": 4, **fields})
    assert answer.status_code == 400
    assert "allowed_token_ids must hold a token that neither bad_words nor min_tokens" in answer.text


@pytest.mark.parametrize("words", [["\n"], [" "], ["x", "\t \n"]])
def test_bad_words_that_are_only_space_are_refused_at_once(http: httpx.Client, words: list[str]) -> None:
    """vLLM strips a bad word in front, so nothing of these is left; its refusal once left the request unanswered."""
    body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 1, "bad_words": words}
    answer = http.post("/v1/completions", json=body, timeout=20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_a_text_can_do_without_bos(http: httpx.Client) -> None:
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 1, "return_token_ids": True}
    with_bos = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_token_ids"]
    without = http.post("/v1/completions", json=body | {"add_special_tokens": False}).json()["choices"][0]
    assert with_bos == [128000, *without["prompt_token_ids"]]


def test_a_context_that_is_too_short(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"model": "tiny-llama", "prompt": [1] * 2000, "max_tokens": 49})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert all(number in error["message"] for number in ("2000", "49", "2048"))


def test_a_model_that_is_not_served(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4", prompt="x")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
