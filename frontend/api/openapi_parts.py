"""What the descriptions of all routes in /openapi.json share: operations, their errors and their headers."""
from __future__ import annotations

from typing import Any

from apispec import APISpec
from marshmallow import Schema

from frontend.schemas import answers

_ERRORS = {
    400: "The request must be changed: the message names the first problem, details list all.",
    401: "The API key is missing, malformed, unknown, expired or revoked.",
    403: "The API key lacks the scope that this route needs.",
    404: "There is no such model, Job, batch or file.",
    409: "It can't be done in the state that things are in: the Job has ended, or the Idempotency-Key is another's.",
    413: "The body is larger than the server takes.",
    429: "rate_limited: try again after Retry-After. budget_exceeded: the caller's tokens can't hold one token for "
         "each choice. spend_cap: the Spend limit pauses new work. x-should-retry says false for the latter two.",
    500: "A bug of the server.",
    502: "Inference failed, or broke off.",
    503: "A part that the API needs does not answer, or the model could not be started.",
    504: "The deadline passed.",
}
#: What a route with a key and a body can answer, beside its 200.
CHECKED = (400, 401, 403, 404, 413, 429, 500, 502, 503, 504)
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

def operation(
    name: str, summary: str, answer: type[Schema] | None, errors: tuple[int, ...], *, body: type[Schema] | None = None,
    others: dict[str, dict[str, Any]] | None = None, key: bool = True, parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The description of an operation whose answer is JSON, if there is an `answer`, or of `others`' media types."""
    right = answer_of(summary, answer)
    if answer is None:
        right["content"] = {}
    right["content"] |= {media_type: {"schema": schema} for media_type, schema in (others or {}).items()}
    described: dict[str, Any] = {
        "operationId": name, "summary": summary, "responses": {"200": right, **error_answers(errors)},
    }
    if body:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if parameters:
        described["parameters"] = parameters
    if key:
        described["security"] = [{"key": []}]
        right["headers"] = {**_REQUEST_ID, **_QUOTA}
    return described


def answer_of(description: str, schema: Any) -> dict[str, Any]:
    """An answer that is JSON."""
    return {"description": description, "headers": _REQUEST_ID, "content": {"application/json": {"schema": schema}}}


def error_answers(statuses: tuple[int, ...]) -> dict[str, str]:
    """Answers that are errors, whose descriptions `add_errors` adds."""
    return {str(status): f"Error{status}" for status in statuses}


def add_errors(spec: APISpec) -> None:
    """Describe each error."""
    for status, description in _ERRORS.items():
        answer = answer_of(description, answers.ErrorSchema)
        if status == 401:
            answer["headers"] = {**_REQUEST_ID, "WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}}
        if status == 429:
            answer["headers"] = {**_REQUEST_ID, "Retry-After": {"schema": {"type": "string"}},
                                 "retry-after-ms": {"schema": {"type": "string"}},
                                 "x-should-retry": {"schema": {"const": "false"}}}
        if status == 503:
            answer["headers"] = {**_REQUEST_ID, "Retry-After": {"required": True, "schema": {"type": "string"}}}
        spec.components.response(f"Error{status}", answer)
