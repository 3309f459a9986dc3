"""Schemathesis drives the API from its own description: nothing undocumented, and never a 5xx."""
from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from frontend.schemas.answers import CompletionChunkSchema
from model_repository import catalog
from tests import sse
from tests.answers import DOCUMENT, check
from tests.stack import Stack

MODEL = catalog.load()["tiny-llama"]
#: The routes that come to Inference, and what part of their right cases must be answered with a 200.
INFERENCE = {"POST /v1/completions": 0.5, "POST /v1/tokenize": 0.5, "POST /v1/detokenize": 0.5,
             "GET /v1/models/{id}": 0.5}
Json = dict[str, Any]
schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def answered() -> Iterator[dict[str, Counter[int]]]:
    """How the right cases of the routes that come to Inference were answered: enough of them must be."""
    statuses: dict[str, Counter[int]] = {}
    yield statuses
    for route, seen in statuses.items():
        assert seen[200] >= INFERENCE[route] * seen.total(), (route, seen)


@schema.parametrize()
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_answer_is_documented_and_none_is_a_5xx(
    case: schemathesis.Case, stack: Stack, answered: dict[str, Counter[int]]
) -> None:
    route = case.operation.label
    right = route in INFERENCE and case.meta is not None and case.meta.generation.mode.is_positive
    if right:
        ask_a_served_model(case)
    answer = case.call_and_validate(
        base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=120,
        excluded_checks=[positive_data_acceptance])  # a schema takes 2.0 for an integer
    if right:
        answered.setdefault(route, Counter())[answer.status_code] += 1
    if answer.status_code == 200 and answer.headers["content-type"][0].startswith("text/event-stream"):
        for event in sse.parse(answer.content.decode()):  # described is an error's event too
            check(CompletionChunkSchema, event)


def ask_a_served_model(case: schemathesis.Case) -> None:
    """Name a model that is served, in seven of eight cases, and ask of it what it can do, and soon: no description says
    which ids are in a vocabulary, or how the fields bound each other. Every third answer is a stream."""
    lot = zlib.crc32(f"{case.path_parameters}{case.body}".encode("utf-8", "replace"))
    if lot % 8 == 0:
        return
    if case.path == "/v1/models/{id}":
        case.path_parameters = {"id": MODEL.id}
    elif isinstance(case.body, dict):
        body = whole(case.body) | {"model": MODEL.id}
        if "tokens" in body:
            body["tokens"] = in_vocabulary(body["tokens"])
        if case.path == "/v1/completions":
            body = possible(body | ({"stream": True} if lot % 3 == 0 else {}))
        case.body = body


def whole(value: Any) -> Any:
    """The same with 2 for 2.0, which a schema takes for an integer, and without what is too near to 0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if abs(value) > 1e-30 else 0.5
    if isinstance(value, dict):
        return {name: whole(member) for name, member in value.items()}
    return [whole(member) for member in value] if isinstance(value, list) else value


def in_vocabulary(ids: list[int]) -> list[int]:
    """Ids that there are."""
    return [token % MODEL.vocab_size for token in ids]


def possible(body: Json) -> Json:
    """A request with the same fields that is small and that the model can do."""
    heavy = -1 in (body.get("logprobs"), body.get("prompt_logprobs"))
    body["max_tokens"] = 1 if heavy else (body.get("max_tokens") or 3) % 4 + 1
    body["n"] = 1 if heavy or body.get("temperature") == 0 else (body.get("n") or 1) % 2 + 1
    body["prompt"] = possible_prompt(body["prompt"], 2 if heavy else 20)
    if "min_tokens" in body:
        body["min_tokens"] %= body["max_tokens"] + 1
    for field in ("stop_token_ids", "allowed_token_ids"):
        if field in body:
            body[field] = in_vocabulary(body[field])
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(token) % MODEL.vocab_size): bias for token, bias in body["logit_bias"].items()}
    if not body.get("stream"):
        body.pop("stream_options", None)
    if asked := body.get("activations"):
        if isinstance(asked["layers"], list):
            asked["layers"] = list(dict.fromkeys(
                layer % MODEL.n_layers if isinstance(layer, int) else layer for layer in asked["layers"]))
        if isinstance(asked.get("positions"), list):
            asked["positions"] = [0 if asked["positions"][0] >= 0 else -1]  # each prompt has a first and a last token
    return body


def possible_prompt(prompt: Any, most: int) -> Any:
    """Two prompts at most, and so much of each."""
    if isinstance(prompt, str):
        return prompt[:most]
    if isinstance(prompt[0], int):
        return in_vocabulary(prompt[:most])
    return [possible_prompt(one, most) for one in prompt[: 1 if most == 2 else 2]]


def test_the_description_is_the_one_that_is_served(http: httpx.Client) -> None:
    served = http.get("/openapi.json").json()
    assert served == DOCUMENT
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/v1/tokenize",
            "/v1/detokenize", "/healthz", "/readyz", "/openapi.json"} <= set(served["paths"])
