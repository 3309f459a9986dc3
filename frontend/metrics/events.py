"""One function for each thing that is counted. Label values are few: a caller can't make a new series.

Counters of several worker processes are added up where they join a `frontend.metrics.folder` before they import this
module. A `model` is always an id that Inference knows, or NO_MODEL.
"""
from __future__ import annotations

from typing import Literal

from prometheus_client import Counter, Gauge, Histogram

#: The model of requests that are about none, and of those that name one that is not served.
NO_MODEL = ""
#: The code of requests that did not fail.
OK = "ok"
#: What stood in a request's way: its key's requests per minute, its key's active and waiting requests, its person's
#: tokens, or the Spend limit.
Limit = Literal["requests_per_minute", "concurrency", "tokens", "spend"]

_requests = Counter("strata_requests", "Requests that ended, by how.", ("method", "route", "model", "status", "code"))
_active = Gauge("strata_requests_active", "Requests that are being answered now.", multiprocess_mode="livesum")
_seconds = Histogram(
    "strata_request_seconds", "From a request's head to the end of its answer.", ("method", "route", "model"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
)
_first_token = Histogram(
    "strata_first_token_seconds", "From a streamed request's head to its first token.", ("model",),
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
)
_tokens = Counter("strata_tokens", "Tokens charged for requests that this frontend ended.", ("model", "kind"))
_limits = Counter("strata_limits_hit", "Requests that a limit refused.", ("limit",))


def request_began() -> None:
    """A request is being answered; `request_ended` must follow."""
    _active.inc()


def request_ended(method: str, route: str, model: str, status: int, code: str, seconds: float) -> None:
    """An answer ended, whole or not. `code` is its error's, also of one in mid-stream, or OK."""
    _active.dec()
    _requests.labels(method, route, model, str(status), code).inc()
    _seconds.labels(method, route, model).observe(seconds)


def first_token(model: str, seconds: float) -> None:
    """A stream's first token came so long after the request."""
    _first_token.labels(model).observe(seconds)


def tokens(model: str, prompt: int, completion: int) -> None:
    """Tokens of one request were charged."""
    _tokens.labels(model, "prompt").inc(prompt)
    _tokens.labels(model, "completion").inc(completion)


def limit_hit(limit: Limit) -> None:
    """A limit refused a request."""
    _limits.labels(limit).inc()
