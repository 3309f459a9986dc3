"""GET /openapi.json: the contract as a machine reads it, generated from the schemas that check requests."""
from __future__ import annotations

from functools import cache
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from flask import Blueprint, Response
from marshmallow import fields

from frontend import errors
from frontend.api import chat, openapi_jobs, tensor_files
from frontend.api.answers import json_answer
from frontend.api.openapi_parts import CHECKED, add_errors, answer_of, error_answers, operation
from frontend.api.parts import parts
from frontend.api.usage import DAYS, MOST_DAYS
from frontend.schemas import answers
from frontend.schemas.completions import CompletionSchema
from frontend.schemas.tokens import DetokenizeSchema, TokenizeSchema

bp = Blueprint("openapi", __name__)

_MAX_TOKENS = {"X-Strata-Max-Tokens": {
    "description": "There where max_tokens was lowered to fit the caller's tokens: "
                   "requested=N, applied=M, reason=tokens.",
    "schema": {"type": "string", "pattern": "^requested=[0-9]+, applied=[0-9]+, reason=tokens$"}}}
#: OpenAPI 3.1 has no word for a sequence, so the schema of a stream is that of each event.
_EVENT: dict[str, Any] = {
    "type": "object", "required": ["data"],
    "description": "With stream: true, one event for each step and choice; [DONE] at the end.",
    "properties": {"data": {"anyOf": [{"const": "[DONE]"}, {
        "type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": [
            {"$ref": "#/components/schemas/CompletionChunk"},
            {"$ref": "#/components/schemas/Error", "description": "Where it breaks off; nothing comes later."},
        ]},
    }]}},
}


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
    add_errors(spec)
    _add_routes(spec)
    document: dict[str, Any] = spec.to_dict()
    document["components"]["schemas"]["Completion"]["properties"]["max_tokens"]["maximum"] = max_total_tokens
    document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"] = sorted(_codes())
    return document


def _add_routes(spec: APISpec) -> None:
    complete = operation(
        "createCompletion", "Continue a text.", answers.CompletionAnswerSchema, CHECKED, body=CompletionSchema,
        others={
            "text/event-stream": _EVENT,
            tensor_files.MEDIA_TYPE: {"type": "string", "format": "binary", "description":
                "Where the header Accept names it, for a request with activations, one prompt, n: 1 and no stream: "
                "the file itself, with the completion, data left out, as JSON in its metadata."},
        },
    )
    complete["responses"]["200"]["headers"] |= _MAX_TOKENS
    spec.path("/v1/completions", operations={"post": complete})
    spec.path("/v1/models", operations={"get": operation(
        "listModels", "Every model that is served, Warm or Cold.", answers.ModelListSchema,
        (401, 429, 500, 502, 503, 504))})
    spec.path("/v1/models/{id}", operations={"get": operation(
        "getModel", "One model.", answers.ModelSchema, (401, 404, 429, 500, 502, 503, 504),
        parameters=[{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
    )})
    spec.path("/v1/tokenize", operations={"post": operation(
        "tokenize", "The tokens of a text.", answers.TokenizedSchema, CHECKED, body=TokenizeSchema)})
    spec.path("/v1/detokenize", operations={"post": operation(
        "detokenize", "The text of tokens.", answers.DetokenizedSchema, CHECKED, body=DetokenizeSchema)})
    spec.path("/v1/usage", operations={"get": operation(
        "getUsage", "The caller's tokens, and what was used of them by day (UTC) and model.",
        answers.UsageReportSchema, (400, 401, 403, 429, 500, 503),
        parameters=[{"name": "days", "in": "query", "description": "How many days, today included.",
                     "schema": {"type": "integer", "minimum": 1, "maximum": MOST_DAYS, "default": DAYS}}],
    )})
    spec.path("/v1/chat/completions", operations={"post": {
        "operationId": "refuseChat", "summary": "Always refused.", "description": chat.MESSAGE,
        "responses": error_answers((400, 500)),
    }})
    spec.path("/healthz", operations={"get": operation(
        "healthz", "Whether this process lives.", answers.HealthSchema, (500,), key=False)})
    spec.path("/readyz", operations={"get": operation(
        "readyz", "Whether the database, Redis and Triton answer.", answers.ReadinessSchema, (500, 503), key=False)})
    spec.path("/openapi.json", operations={"get": {
        "operationId": "openapi", "summary": "This document.",
        "responses": {"200": answer_of("This document.", {"type": "object"}), **error_answers((500,))},
    }})
    openapi_jobs.add_routes(spec)
    spec.components.schema("CompletionChunk", schema=answers.CompletionChunkSchema)


def _codes() -> set[str]:
    """Those of the API. The App has an error of its own."""
    return {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ApiError)}


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
