"""Writes answers: JSON bodies, and every error in OpenAI's shape. The one place that turns exceptions into statuses."""
from __future__ import annotations

from typing import Any

import orjson
import structlog
from flask import Flask, Response, request
from werkzeug import exceptions as http

from frontend.api.body import discard_body, is_full
from frontend.api.counting import observation
from frontend.api.parts import parts
from frontend.errors import (
    ApiError,
    InternalError,
    InvalidApiKey,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
    Unavailable,
    error_body,
)

#: Seconds after which a caller may try again what a part of ours could not do.
RETRY_AFTER = 5

_log = structlog.get_logger(__name__)


def json_answer(body: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(body), status, content_type="application/json")


def error_answer(error: ApiError) -> Response:
    """The answer for an error, with the headers that its status asks for."""
    answer = json_answer(error_body(error), error.status)
    if error.status == 503:
        answer.headers["Retry-After"] = str(RETRY_AFTER)
    if isinstance(error, InvalidApiKey):
        answer.headers["WWW-Authenticate"] = "Bearer"
    answer.headers.update(error.headers)
    return answer


def api_error(error: Exception, max_body_bytes: int) -> ApiError:
    """The API's error for any exception. What is none of ours is a bug, whose text the caller does not see."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, http.NotFound):
        return NotFound("There is no such path. GET /openapi.json lists them all.")
    if isinstance(error, http.MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        return MethodNotAllowed(f"This path takes {allowed}.", headers={"Allow": allowed})
    if isinstance(error, http.RequestEntityTooLarge):
        return RequestTooLarge(f"The body is larger than {max_body_bytes // 2**20} MB.")
    if isinstance(error, http.HTTPException) and error.code is not None and 400 <= error.code < 500:
        return InvalidRequest("The request is not valid HTTP.")
    if is_full(error):
        return Unavailable("This server's disk is full. Try again later, and tell its operators if it stays so.")
    return InternalError("This is a bug in Strata. Its operators find it in the logs by this answer's x-request-id.")


def handle_errors(app: Flask) -> None:
    """Answer every exception that leaves a route."""
    app.register_error_handler(Exception, answer_error)


def answer_error(raised: Exception) -> Response:
    """The answer for an exception, which is logged where it is our fault."""
    max_body_bytes = parts().settings.max_body_bytes
    error = api_error(raised, request.max_content_length or max_body_bytes)
    note_error(error, raised)
    discard_body(max_body_bytes)
    return error_answer(error)


def note_error(error: ApiError, raised: Exception) -> None:
    """Count an error, and log what is our fault."""
    observation().code = error.code
    if isinstance(error, InternalError):
        _log.error("internal error", exc_info=raised)
    elif error.status >= 500:
        _log.warning("unavailable", code=error.code, exc_info=raised)
