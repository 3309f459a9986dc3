"""Every error that the API can answer with, as typed exceptions.

Code anywhere below the edge raises one of these; `frontend/api/` turns it into OpenAI's error shape, once.
The table of statuses, types and codes is the HTTP contract's.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a request: the message for the caller and the field that it is about."""

    message: str
    param: str | None = None


@dataclass
class ApiError(Exception):
    """An answer that is not a 2xx. `details` lists every problem of the request, the first one included."""

    message: str
    param: str | None = None
    details: tuple[Problem, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    status = 500
    type = "server_error"
    code = "internal_error"

    def __str__(self) -> str:
        return self.message


def error_body(error: ApiError) -> dict[str, Any]:
    """OpenAI's shape of an error: an answer's body, the data of an error event in mid-stream, a Job's result."""
    body: dict[str, Any] = {
        "message": error.message, "type": error.type, "param": error.param, "code": error.code,
    }
    if error.details:
        body["details"] = [_detail(problem) for problem in error.details]
    elif isinstance(error, InvalidRequest):
        body["details"] = [_detail(Problem(error.message, error.param))]
    return {"error": body}


def _detail(problem: Problem) -> dict[str, Any]:
    return {"param": problem.param, "message": problem.message}


class InvalidRequest(ApiError):
    """400: a field is unknown, of the wrong type or out of bounds."""

    status, type, code = 400, "invalid_request_error", "invalid_request"

    @classmethod
    def of(cls, problems: list[Problem]) -> InvalidRequest:
        """The error for several problems at once: the message names the first, details list them all."""
        return cls(problems[0].message, problems[0].param, tuple(problems))


class BadJson(InvalidRequest):
    """400: the body is not one strict JSON object."""

    code = "bad_json"


class ContextLengthExceeded(InvalidRequest):
    """400: prompt tokens + max_tokens do not fit the model's context."""

    code = "context_length_exceeded"


class FullVocabTooLarge(InvalidRequest):
    """400: a whole-vocabulary answer beyond the model's cap."""

    code = "full_vocab_too_large"


class ActivationsTooLarge(InvalidRequest):
    """400: an answer with more bytes of Activations than the model's cap."""

    code = "activations_too_large"


class InvalidApiKey(ApiError):
    """401: one answer for a missing, malformed, unknown, expired or revoked key."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class PermissionDenied(ApiError):
    """403: the key is good, and lacks the scope that the route needs."""

    status, type, code = 403, "permission_error", "missing_scope"


class ModelNotFound(ApiError):
    """404: no model of that id is served."""

    status, type, code = 404, "invalid_request_error", "model_not_found"


class NotFound(ApiError):
    """404: no such path."""

    status, type, code = 404, "invalid_request_error", "not_found"


class MethodNotAllowed(ApiError):
    """405: the path exists, with another method."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class Conflict(ApiError):
    """409: somebody else was faster."""

    status, type, code = 409, "conflict_error", "already_decided"


class RequestTooLarge(ApiError):
    """413: the body is larger than the setting allows."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class BudgetExceeded(ApiError):
    """429: the caller's tokens can't hold one token for each choice. Trying again changes nothing."""

    status, type, code = 429, "insufficient_quota", "budget_exceeded"


class RateLimited(ApiError):
    """429: too many requests. `headers` say when to try again."""

    status, type, code = 429, "rate_limit_error", "rate_limited"


class SpendCap(ApiError):
    """429: new work is paused by the Spend limit. Trying again changes nothing before the month or the limit does."""

    status, type, code = 429, "insufficient_quota", "spend_cap"


class JobNotCancellable(Conflict):
    """409: the Job has ended, so it can't be cancelled."""

    code = "job_not_cancellable"


class IdempotencyConflict(Conflict):
    """409: the idempotency key was used for something else."""

    code = "idempotency_conflict"


class InternalError(ApiError):
    """500: a bug of ours."""


class InferenceError(ApiError):
    """502: Inference failed, or broke off."""

    status, code = 502, "inference_error"


class ModelUnavailable(ApiError):
    """503: the model could not be started."""

    status, code = 503, "model_unavailable"


class Unavailable(ApiError):
    """503: a part that the API needs is down."""

    status, code = 503, "unavailable"


class DeadlineExceeded(ApiError):
    """504: the deadline passed."""

    status, code = 504, "timeout"
