"""/openapi.json is a valid description that says what the schemas do."""
from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import pytest
from flask import Flask
from flask.testing import FlaskClient

from frontend.errors import ApiError
from frontend.schemas.completions import CompletionSchema

Document = dict[str, Any]


@pytest.fixture
def document(anonymous: FlaskClient) -> Document:
    body = anonymous.get("/openapi.json").get_json()
    assert isinstance(body, dict)
    return body


@pytest.fixture
def completion(document: Document) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        {"$ref": "#/components/schemas/Completion", "components": document["components"]})


def test_every_route_is_described_and_no_other(document: Document, app: Flask) -> None:
    routes = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule.replace("<path:model>", "{id}")), method.lower())
        for rule in app.url_map.iter_rules() if not rule.endpoint.startswith("web.")  # the App is for people
        for method in rule.methods or () if method not in ("HEAD", "OPTIONS")
    }
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described == routes


def test_every_reference_leads_somewhere(document: Document) -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            return [node["$ref"]] if "$ref" in node else [r for value in node.values() for r in references(value)]
        return [r for value in node for r in references(value)] if isinstance(node, list) else []

    found = references(document)
    assert found
    for reference in found:
        target = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_every_field_is_there_with_its_bounds(document: Document) -> None:
    schema = document["components"]["schemas"]["Completion"]
    fields = schema["properties"]
    assert schema["additionalProperties"] is False
    assert set(fields) == set(CompletionSchema().fields)
    assert set(schema["required"]) == {"model", "prompt"}
    assert (fields["n"]["minimum"], fields["n"]["maximum"]) == (1, 128)
    assert (fields["max_tokens"]["minimum"], fields["max_tokens"]["maximum"]) == (1, 32_000)
    assert (fields["top_p"]["exclusiveMinimum"], fields["top_p"]["maximum"]) == (0, 1)
    assert "minimum" not in fields["top_p"]
    assert fields["seed"]["maximum"] == 2**63 - 1
    assert fields["user"]["maxLength"] == 256
    assert fields["echo"]["type"] == ["boolean", "null"]
    assert fields["ignore_eos"]["type"] == "boolean"


def test_the_error_codes_are_all_there(document: Document) -> None:
    def codes(kind: type[ApiError]) -> set[str]:
        here = set() if kind.__module__.startswith("frontend.web.") else {kind.code}
        return here.union(*(codes(below) for below in kind.__subclasses__()))

    assert set(document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"]) == codes(ApiError)


def test_every_guarded_route_says_so(document: Document) -> None:
    for path, item in document["paths"].items():
        for operation in item.values():
            guarded = path.startswith("/v1/") and path != "/v1/chat/completions"
            assert ("security" in operation) is guarded
            assert ("401" in operation["responses"]) is guarded


@pytest.mark.parametrize("fields", [
    {}, {"prompt": ["x"]}, {"prompt": [1, 2]}, {"prompt": [[1], [2]]}, {"stop": "x"}, {"stop": ["x"]}, {"stop": None},
    {"temperature": 0}, {"temperature": 0.01}, {"temperature": None}, {"logit_bias": {"0": 1, "12": -100}},
    {"logit_bias": None}, {"stream": True, "stream_options": {"include_usage": True}}, {"stream_options": None},
    {"logprobs": -1}, {"top_k": -1}, {"max_tokens": None}, {"allowed_token_ids": [1]}, {"bad_words": []},
    {"activations": {"layers": "all"}}, {"activations": {"layers": [0, "embedding"], "positions": [-1, 4]}},
    {"activations": {"layers": ["final_norm"], "positions": "last", "dtype": "float16"}},
], ids=str)
def test_right_requests_fit_the_description(completion: jsonschema_rs.Validator, fields: dict[str, Any]) -> None:
    completion.validate({"model": "m", "prompt": "x", **fields})


@pytest.mark.parametrize("fields", [
    {"prompt": []}, {"prompt": [[]]}, {"prompt": None}, {"prompt": [-1]}, {"prompt": ["x", 1]}, {"stop": []},
    {"stop": ["a"] * 5}, {"stop": ""}, {"temperature": 0.001}, {"temperature": 2.1}, {"temperature": "1"},
    {"top_p": 0}, {"logit_bias": {"01": 1}}, {"logit_bias": {"1": 101}}, {"unknown": 1}, {"n": 0}, {"echo": 1},
    {"stream_options": {"x": 1}}, {"user": None}, {"prompt_logprobs": None}, {"allowed_token_ids": []},
    {"max_tokens": 32_001}, {"model": ""}, {"activations": {}}, {"activations": None}, {"activations": "all"},
    {"activations": {"layers": []}}, {"activations": {"layers": [0, 0]}}, {"activations": {"layers": ["0"]}},
    {"activations": {"layers": "last"}}, {"activations": {"layers": [0], "positions": []}},
    {"activations": {"layers": [0], "positions": "first"}}, {"activations": {"layers": [0], "dtype": "float64"}},
    {"activations": {"layers": [0], "layer": 1}},
], ids=str)
def test_wrong_requests_do_not(completion: jsonschema_rs.Validator, fields: dict[str, Any]) -> None:
    assert not completion.is_valid({"model": "m", "prompt": "x", **fields})


def test_the_answer_may_be_json_or_events_or_a_file(document: Document) -> None:
    content = document["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream", "application/vnd.safetensors"}
    end, data = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    assert end == {"const": "[DONE]"}
    assert [kind["$ref"] for kind in data["contentSchema"]["anyOf"]] == [
        "#/components/schemas/CompletionChunk", "#/components/schemas/Error"]
    schemas = document["components"]["schemas"]
    assert schemas["Choice"]["properties"]["activations"]["$ref"] == "#/components/schemas/ChoiceActivations"
    assert set(schemas["ChoiceActivations"]["required"]) == {
        "layers", "positions", "shape", "dtype", "format", "encoding", "data"}
