"""What the schemas and /openapi.json say of answers holds for real ones: whole, streamed and others."""
from __future__ import annotations

from typing import Any

import httpx
import pytest
from marshmallow import ValidationError

from frontend.schemas import answers
from tests import sse
from tests.answers import check

Json = dict[str, Any]
ASKED: dict[str, Json] = {
    "plain": {},
    "log probabilities": {"logprobs": 2, "temperature": 0},
    "echo": {"echo": True, "logprobs": 1, "prompt_logprobs": 2},
    "a forbidden token": {"logprobs": 3, "allowed_token_ids": [65, 66]},
    "several of several": {"prompt": ["a b", "c"], "n": 2, "logprobs": 0, "return_token_ids": True},
    "names of tokens": {"logprobs": 1, "return_tokens_as_token_ids": True, "prompt_logprobs": 0},
    "a stop token": {"stop_token_ids": [65], "allowed_token_ids": [65]},
    "a stop text": {"stop": "b", "allowed_token_ids": [65]},
    "Activations": {"activations": {"layers": [1, "embedding", "final_norm"], "positions": "all", "dtype": "bfloat16"}},
    "Activations at listed positions": {"activations": {"layers": "all", "positions": [-1, 0]}, "n": 2},
}


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    answer = http.post("/v1/completions", json={
        "model": "tiny-llama", "prompt": "The sky is", "max_tokens": 3, "seed": 1, **fields})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("name", ASKED)
def test_a_completion_is_as_it_is_described(http: httpx.Client, name: str) -> None:
    answer = ask(http, **ASKED[name]).json()
    check(answers.CompletionAnswerSchema, answer)
    for field in ("activations", "prompt_logprobs"):
        assert all((field in choice) is (field in ASKED[name]) for choice in answer["choices"])


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_every_event_of_a_stream_is_as_it_is_described(http: httpx.Client, name: str, include_usage: bool) -> None:
    events = sse.events(ask(http, **ASKED[name], stream=True, stream_options={"include_usage": include_usage}))
    assert events
    for event in events:
        check(answers.CompletionChunkSchema, event)


def test_other_answers_are_as_they_are_described(http: httpx.Client) -> None:
    check(answers.ModelListSchema, http.get("/v1/models").json())
    check(answers.ModelSchema, http.get("/v1/models/tiny-llama").json())
    tokens = http.post("/v1/tokenize", json={"model": "tiny-llama", "prompt": "The sky is"}).json()
    check(answers.TokenizedSchema, tokens)
    check(answers.DetokenizedSchema, http.post(
        "/v1/detokenize", json={"model": "tiny-llama", "tokens": tokens["tokens"]}).json())
    check(answers.UsageReportSchema, http.get("/v1/usage").json())
    check(answers.HealthSchema, http.get("/healthz").json())
    check(answers.ReadinessSchema, http.get("/readyz").json())
    check(answers.ErrorSchema, http.post("/v1/completions", json={"model": "tiny-llama", "promt": "x"}).json())


@pytest.mark.parametrize("change", [
    {"choices": [{"text": "x"}]}, {"usage": None}, {"created": "now"}, {"more": 1}, {"object": "text"}], ids=str)
def test_another_answer_is_not(http: httpx.Client, change: Json) -> None:
    answer = ask(http).json()
    with pytest.raises(ValidationError):
        check(answers.CompletionAnswerSchema, answer | change)
