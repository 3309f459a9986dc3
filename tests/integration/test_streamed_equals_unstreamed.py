"""For any request at temperature 0, the joined stream is the unstreamed answer: text, logprobs, offsets and reasons."""
from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import sse

Json = dict[str, Any]

TEXTS = st.sampled_from(
    ["The sky is", "é", "日本語 ", "A B C D", "🙂🙂", "def f(x):\n", "<|begin_of_text|>x", " ", ""]
) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ID = st.integers(0, 2000) | st.sampled_from([128000, 128001, 9468, 247])
IDS = st.just([128000]) | st.lists(ID, min_size=1, max_size=12)
STOPS = st.lists(st.sampled_from(["e", " ", "a", "in", "\n", "ist", "\ufffd", "the", "_"]), min_size=1, max_size=4)


@st.composite
def requests(draw: st.DrawFn) -> Json:
    """A request that is repeatable: temperature 0, everything else as it comes."""
    prompts = draw(TEXTS | IDS | st.lists(TEXTS, min_size=1, max_size=3) | st.lists(IDS, min_size=1, max_size=3))
    body: Json = {"model": "tiny-llama", "prompt": prompts, "temperature": 0, "max_tokens": draw(st.integers(1, 16))}
    optional = {
        "echo": st.booleans(), "logprobs": st.integers(0, 5), "prompt_logprobs": st.integers(0, 3), "stop": STOPS,
        "include_stop_str_in_output": st.booleans(), "skip_special_tokens": st.booleans(),
        "return_token_ids": st.booleans(), "return_tokens_as_token_ids": st.booleans(), "ignore_eos": st.booleans(),
        "min_tokens": st.integers(0, body["max_tokens"]), "add_special_tokens": st.booleans(),
        "repetition_penalty": st.sampled_from([0.8, 1.3]), "presence_penalty": st.sampled_from([-1, 0.5]),
        "frequency_penalty": st.sampled_from([-0.5, 2]), "top_p": st.sampled_from([0.1, 0.9]),
        "top_k": st.sampled_from([-1, 1, 40]), "min_p": st.sampled_from([0.05, 1]),
        "bad_words": st.lists(st.sampled_from(["b", "the sky", "ist", "é", "a b"]), min_size=1, max_size=3),
        "stop_token_ids": st.lists(st.integers(0, 128255), min_size=1, max_size=3),
        "allowed_token_ids": st.just([65, 66, 220, 279, 9468, 247, 128001, 1000]),
        "logit_bias": st.dictionaries(st.sampled_from(["9468", "247", "128001", "220"]), st.just(30), min_size=1),
    }
    for name in draw(st.sets(st.sampled_from(sorted(optional)), max_size=7)):
        body[name] = draw(optional[name])
    if draw(st.booleans()):  # allowed ids make texts of a few letters, where stop strings begin and complete often
        body["allowed_token_ids"] = [64, 65, 66, 220]
        body["stop"] = draw(st.lists(st.text("abc ", min_size=1, max_size=4), min_size=1, max_size=4, unique=True))
        body.pop("stop_token_ids", None)
    if {"allowed_token_ids", "logit_bias"} <= set(body):
        del body["logit_bias"]
    return body


def numbers_apart(value: Any) -> Any:
    """The same value with log probabilities that compare to 1e-3: a batch of another shape moves them a little."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, dict):
        if len(value) > 1000:
            return pytest.approx(value, abs=1e-3)  # the whole vocabulary
        return {key: numbers_apart(member) for key, member in value.items()}
    return [numbers_apart(member) for member in value] if isinstance(value, list) else value


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(body=requests())
def test_the_joined_stream_equals_the_unstreamed_answer(http: httpx.Client, body: Json) -> None:
    compare(http, body)


@pytest.mark.parametrize("fields", [{}, {"echo": True, "return_tokens_as_token_ids": True}, {"stop": "x"}], ids=str)
def test_so_it_does_with_the_whole_vocabulary(http: httpx.Client, fields: Json) -> None:
    compare(http, {"model": "tiny-llama", "prompt": "é", "temperature": 0, "max_tokens": 2, "logprobs": -1} | fields)


def compare(http: httpx.Client, body: Json) -> None:
    """Send a request both ways."""
    whole = http.post("/v1/completions", json=body)
    streamed = http.post("/v1/completions", json=body | {"stream": True, "stream_options": {"include_usage": True}})
    assert whole.status_code == streamed.status_code, (whole.text, streamed.text)
    if whole.status_code != 200:
        assert whole.status_code == 400
        assert whole.json() == streamed.json()
        return
    answer, chunks = whole.json(), sse.events(streamed)
    assert sse.join(chunks) == numbers_apart(answer["choices"])
    assert chunks[-1]["usage"] == answer["usage"]
    for choice in answer["choices"]:
        check_choice(choice, body)


def check_choice(choice: Json, body: Json) -> None:
    """What holds for every choice."""
    if "token_ids" in choice and choice["logprobs"] and not body.get("echo"):
        assert len(choice["token_ids"]) == len(choice["logprobs"]["tokens"])
    if choice["logprobs"] and not body.get("return_tokens_as_token_ids"):
        for token, offset, top in zip(*(choice["logprobs"][name] for name in ("tokens", "text_offset", "top_logprobs")),
                                      strict=True):
            assert 0 <= offset <= len(choice["text"])
            assert top is None or token in top
            special = token.startswith("<|")
            assert special or offset == len(choice["text"]) or choice["text"][offset:].startswith(token)
    if choice["finish_reason"] == "stop" and isinstance(choice["stop_reason"], str):
        if body.get("include_stop_str_in_output"):
            assert choice["text"].endswith(choice["stop_reason"])
        elif not body.get("min_tokens") and not body.get("echo"):  # until min_tokens, stop strings are ordinary text
            assert choice["stop_reason"] not in choice["text"]
