"""POST /v1/completions: reads the body, walks the request, and writes its answer whole or as events."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import orjson
import structlog
from flask import Blueprint, Response, g, request

from frontend.api.answers import api_error, error_body
from frontend.api.auth import require_caller
from frontend.api.body import json_body
from frontend.api.compression import choose, compress
from frontend.api.counting import GONE, Observation, observation
from frontend.api.disconnect import DisconnectWatcher
from frontend.api.parts import parts
from frontend.completions.plan import Plan
from frontend.completions.walk import Limits, Run, plan_request
from frontend.inference import Cancelled
from frontend.schemas.completions import load_completion

bp = Blueprint("completions", __name__)
_log = structlog.get_logger(__name__)
_watcher = DisconnectWatcher()


class Cancellation:
    """Cancels the work on the engine once, also when the client left before that work began."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self._fired = False

    def arm(self, cancel: Callable[[], object]) -> None:
        """The work has begun, and `cancel` stops it."""
        self._cancel = cancel
        if self._fired:
            cancel()

    def fire(self) -> None:
        """The client has gone."""
        self._fired = True
        if self._cancel is not None:
            self._cancel()


@bp.post("/v1/completions")
def create_completion() -> Response:
    """Complete prompts. Everything that can be refused is refused before the answer begins."""
    settings, inference = parts().settings, parts().inference
    asked = load_completion(json_body(), settings.max_total_tokens)
    observation().asked = asked.model
    require_caller("completions")
    limits = Limits(settings.max_total_tokens, settings.request_timeout_seconds)
    plan = plan_request(asked, inference, limits)
    cancellation = Cancellation()
    with ExitStack() as stack:
        stack.enter_context(_watcher.watch(request.environ, cancellation.fire))
        run = Run(plan, inference, g.request_id, limits, cancellation.arm)
        stack.callback(run.close)
        try:
            run.begin()
            if not asked.stream:
                return _sent(run.body(), plan, "application/json", live=False)
        except Cancelled:
            observation().code = GONE
            return Response(status=499)  # nobody is there to read it; the number is for the log
        observation().first_token(plan.card.id)
        events = _events(run, observation(), settings.max_body_bytes)
        answer = _sent(events, plan, "text/event-stream; charset=utf-8", live=True)
        answer.headers["Cache-Control"] = "no-cache"
        answer.headers["X-Accel-Buffering"] = "no"  # tells nginx to pass each event on at once
        answer.call_on_close(stack.pop_all().close)
        return answer


def _sent(parts: Iterator[bytes], plan: Plan, content_type: str, live: bool) -> Response:
    """The answer in one piece, or as it is rendered where it is too large for that; the latter compressed if wished."""
    if not plan.renders_as_it_goes:
        return Response(parts if live else b"".join(parts), content_type=content_type)
    coding = choose(request.accept_encodings)
    parts = _logged(parts, observation())
    answer = Response(compress(parts, coding, live) if coding else parts, content_type=content_type)
    if coding:
        answer.headers["Content-Encoding"] = coding
    answer.headers["Vary"] = "Accept-Encoding"
    return answer


def _logged(parts: Iterator[bytes], seen: Observation) -> Iterator[bytes]:
    """The same parts. An error after the answer has begun can only cut it off, so it is at least in the log."""
    log = _log.bind(**structlog.contextvars.get_contextvars())
    try:
        yield from parts
    except Exception as raised:
        seen.code = api_error(raised, 0).code
        log.error("an answer broke off", exc_info=raised)
        raise


def _events(run: Run, seen: Observation, max_body_bytes: int) -> Iterator[bytes]:
    """The events. An error in mid-stream is one event of its own, after which the stream ends without `[DONE]`."""
    log = _log.bind(**structlog.contextvars.get_contextvars())
    try:
        yield from run.events()
    except (Cancelled, GeneratorExit):
        seen.code = GONE
        return
    except Exception as raised:
        error = api_error(raised, max_body_bytes)
        seen.code = error.code
        log.error("a stream broke off", code=error.code, exc_info=raised)
        yield b"data: " + orjson.dumps(error_body(error)) + b"\n\n"
