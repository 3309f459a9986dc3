"""GET /openapi.json: the contract as a machine reads it, generated from the schemas that check requests."""
from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from flask import Blueprint, Response
from marshmallow import Schema, fields

from frontend.api import chat, tensor_files
from frontend.api.answers import json_answer
from frontend.api.parts import parts
from frontend.api.usage import DAYS, MOST_DAYS
from frontend.errors import ApiError
from frontend.schemas import answers
from frontend.schemas.completions import CompletionSchema
from frontend.schemas.tokens import DetokenizeSchema, TokenizeSchema

bp = Blueprint("openapi", __name__)

_ERRORS = {
    400: "The request must be changed: the message names the first problem, details list all.",
    401: "The API key is missing, malformed, unknown, expired or revoked.",
    403: "The API key lacks the scope that this route needs.",
    404: "No model of that id is served.",
    413: "The body is larger than the server takes.",
    429: "rate_limited: try again after Retry-After. budget_exceeded: the caller's tokens can't hold one token for "
         "each choice. spend_cap: the Spend limit pauses new work. x-should-retry says false for the latter two.",
    500: "A bug of the server.",
    502: "Inference failed, or broke off.",
    503: "A part that the API needs does not answer, or the model could not be started.",
    504: "The deadline passed.",
}
#: What a route with a key and a body can answer, beside its 200.
_CHECKED = (400, 401, 403, 404, 413, 429, 500, 502, 503, 504)
_REQUEST_ID = {
    "x-request-id": {"description": "Name it when you report a problem.", "required": True,
                     "schema": {"type": "string", "pattern": "^req_[0-9A-Za-z]{24}$"}},
}
#: On every answer to a caller whose key is good.
_QUOTA = {name: {"description": description, "schema": {"type": "string"}} for name, description in (
    ("x-ratelimit-limit-requests", "How many requests this key may start in a minute."),
    ("x-ratelimit-remaining-requests", "How many more it may start now."),
    ("x-ratelimit-reset-requests", "When there is room for more, as seconds: 1.500s."),
    ("x-ratelimit-remaining-tokens", "The caller's available tokens."),
)}
_MAX_TOKENS = {"X-Strata-Max-Tokens": {
    "description": "There where max_tokens was lowered to fit the caller's tokens: "
                   "requested=N, applied=M, reason=tokens.",
    "schema": {"type": "string", "pattern": "^requested=[0-9]+, applied=[0-9]+, reason=tokens$"}}}


@bp.get("/openapi.json")
def openapi() -> Response:
    """The description of every route, bounds included."""
    return json_answer(describe(parts().settings.max_total_tokens))


@cache
def describe(max_total_tokens: int) -> dict[str, Any]:
    """The OpenAPI document. It is one for the settings of a process, so it is made once."""
    plugin = MarshmallowPlugin(schema_name_resolver=lambda schema: _name(schema))
    spec = APISpec(
        title="Strata", version="1", openapi_version="3.1.0", plugins=[plugin],
        info={"description": "Completions of Llama Base models, after OpenAI's completions API, strictly checked. "
                             "An integer is written without a decimal point: 2.0 is none."},
    )
    plugin.converter.add_attribute_function(_field_details)
    spec.components.security_scheme("key", {"type": "http", "scheme": "bearer", "bearerFormat": "strata-…"})
    _add_errors(spec)
    _add_routes(spec)
    document: dict[str, Any] = spec.to_dict()
    # The chunks of a stream are no JSON body, so no route refers to them.
    document["components"]["schemas"]["Completion"]["properties"]["max_tokens"]["maximum"] = max_total_tokens
    document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"] = sorted(set(_codes(ApiError)))
    return document


def _add_routes(spec: APISpec) -> None:
    spec.path("/v1/completions", operations={"post": _operation(
        "createCompletion", "Continue a text.", answers.CompletionAnswerSchema, _CHECKED, body=CompletionSchema,
        others={
            "text/event-stream": {"type": "string", "description":
                "With stream: true, one event for each step and choice whose data is a CompletionChunk, or "
                "{\"error\": …} where it breaks off; [DONE] at the end."},
            tensor_files.MEDIA_TYPE: {"type": "string", "format": "binary", "description":
                "Where the header Accept names it, for a request with activations, one prompt, n: 1 and no stream: "
                "the file itself, with the completion, data left out, as JSON in its metadata."},
        },
    )})
    spec.path("/v1/models", operations={"get": _operation(
        "listModels", "Every model that is served, Warm or Cold.", answers.ModelListSchema,
        (401, 429, 500, 502, 503, 504))})
    spec.path("/v1/models/{id}", operations={"get": _operation(
        "getModel", "One model.", answers.ModelSchema, (401, 404, 429, 500, 502, 503, 504),
        parameters=[{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
    )})
    spec.path("/v1/tokenize", operations={"post": _operation(
        "tokenize", "The tokens of a text.", answers.TokenizedSchema, _CHECKED, body=TokenizeSchema)})
    spec.path("/v1/detokenize", operations={"post": _operation(
        "detokenize", "The text of tokens.", answers.DetokenizedSchema, _CHECKED, body=DetokenizeSchema)})
    spec.path("/v1/usage", operations={"get": _operation(
        "getUsage", "The caller's tokens, and what was used of them by day (UTC) and model.",
        answers.UsageReportSchema, (400, 401, 403, 429, 500, 503),
        parameters=[{"name": "days", "in": "query", "description": "How many days, today included.",
                     "schema": {"type": "integer", "minimum": 1, "maximum": MOST_DAYS, "default": DAYS}}],
    )})
    spec.path("/v1/chat/completions", operations={"post": {
        "operationId": "refuseChat", "summary": "Always refused.", "description": chat.MESSAGE,
        "responses": _error_answers((400, 500)),
    }})
    spec.path("/healthz", operations={"get": _operation(
        "healthz", "Whether this process lives.", answers.HealthSchema, (500,), key=False)})
    spec.path("/readyz", operations={"get": _operation(
        "readyz", "Whether the database, Redis and Triton answer.", answers.ReadinessSchema, (500, 503), key=False)})
    spec.path("/openapi.json", operations={"get": {
        "operationId": "openapi", "summary": "This document.",
        "responses": {"200": _answer("This document.", {"type": "object"}), **_error_answers((500,))},
    }})
    spec.components.schema("CompletionChunk", schema=answers.CompletionChunkSchema)


def _operation(
    name: str, summary: str, answer: type[Schema], errors: tuple[int, ...], *, body: type[Schema] | None = None,
    others: dict[str, dict[str, str]] | None = None, key: bool = True, parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    right = _answer(summary, answer)
    right["content"] |= {media_type: {"schema": schema} for media_type, schema in (others or {}).items()}
    operation: dict[str, Any] = {
        "operationId": name, "summary": summary, "responses": {"200": right, **_error_answers(errors)},
    }
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if parameters:
        operation["parameters"] = parameters
    if key:
        operation["security"] = [{"key": []}]
        right["headers"] = {**_REQUEST_ID, **_QUOTA, **(_MAX_TOKENS if others else {})}
    return operation


def _answer(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "headers": _REQUEST_ID, "content": {"application/json": {"schema": schema}}}


def _error_answers(statuses: tuple[int, ...]) -> dict[str, str]:
    return {str(status): f"Error{status}" for status in statuses}


def _add_errors(spec: APISpec) -> None:
    for status, description in _ERRORS.items():
        answer = _answer(description, answers.ErrorSchema)
        if status == 401:
            answer["headers"] = {**_REQUEST_ID, "WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}}
        if status == 429:
            answer["headers"] = {**_REQUEST_ID, "Retry-After": {"schema": {"type": "string"}},
                                 "retry-after-ms": {"schema": {"type": "string"}},
                                 "x-should-retry": {"schema": {"const": "false"}}}
        if status == 503:
            answer["headers"] = {**_REQUEST_ID, "Retry-After": {"required": True, "schema": {"type": "string"}}}
        spec.components.response(f"Error{status}", answer)


def _codes(error: type[ApiError]) -> Iterator[str]:
    yield error.code
    for kind in error.__subclasses__():
        yield from _codes(kind)


def _name(schema: Any) -> str:
    kind = schema if isinstance(schema, type) else type(schema)
    return kind.__name__.removesuffix("Schema")


def _field_details(_: Any, field: fields.Field[Any], ret: dict[str, Any]) -> dict[str, Any]:
    """What apispec does not know of our fields. It changes `ret`, as apispec's own functions do."""
    if "exclusiveMinimum" in ret:
        ret.pop("minimum", None)
    if ret.get("default", ...) is None:
        del ret["default"]  # None is how we keep "left out", not a value that a caller could send
    patterns = field.metadata.get("patternProperties")
    return {"patternProperties": patterns} if patterns else {}
