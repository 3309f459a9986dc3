"""The refusals among the cases from public bug reports that need no model."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frontend.completions.request import CompletionRequest
from frontend.errors import ApiError
from frontend.schemas.completions import load_completion

CASES = {case["name"]: case for case in json.loads(
    (Path(__file__).resolve().parents[2] / "cases" / "completions.json").read_text())}


def load(name: str) -> CompletionRequest:
    case: dict[str, Any] = CASES[name]
    raw = case.get("raw") or json.dumps({"model": "tiny-llama", **case["request"]})
    return load_completion(("[" * 100_000 if name == "deep nesting" else raw).encode(), 32_000)


@pytest.mark.parametrize(("name", "code", "param", "said"), [
    ("empty batch", "invalid_request", "prompt", "empty"),
    ("negative token id", "invalid_request", "prompt", "-1 at prompt[0][0]"),
    ("logit_bias keys that collide", "invalid_request", "logit_bias", "01"),
    ("seed too large", "invalid_request", "seed", str(2**63 - 1)),
    ("stream_options without stream", "invalid_request", "stream_options", "stream"),
    ("duplicate key", "bad_json", None, "model"),
    ("NaN in the body", "bad_json", None, "NaN"),
    ("lone surrogate", "bad_json", None, "surrogate"),
    ("huge integer", "bad_json", None, "64-bit float"),
    ("deep nesting", "bad_json", None, "deeper"),
])
def test_refused(name: str, code: str, param: str | None, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        load(name)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)
    assert said in refused.value.message


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "request" in case and name not in {
    "empty batch", "negative token id", "logit_bias keys that collide", "seed too large",
    "stream_options without stream",
}])
def test_what_only_a_model_can_refuse_passes_the_schema(name: str) -> None:
    load(name)


def test_null_max_tokens_is_as_if_left_out() -> None:
    assert load("null max_tokens").max_tokens is None


def test_usage_comes_only_when_asked_for() -> None:
    assert load("usage in a stream").include_usage is True
    assert load("empty stream_options").include_usage is False
