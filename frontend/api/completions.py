"""POST /v1/completions: reads the body, walks the request, and writes its answer whole or as events."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import orjson
import structlog
from flask import Blueprint, Response, g, request

from frontend.accounts.caller import Caller
from frontend.api import tensor_files
from frontend.api.answers import api_error, error_body
from frontend.api.auth import require_caller
from frontend.api.body import json_body
from frontend.api.compression import choose, compress
from frontend.api.counting import GONE, Observation, observation
from frontend.api.disconnect import DisconnectWatcher
from frontend.api.parts import parts
from frontend.api.quota import note_available, turn
from frontend.budgets.booking import Booking
from frontend.budgets.clamp import Need
from frontend.budgets.holds import Order
from frontend.completions.plan import Plan
from frontend.completions.walk import DONE, Limits, Run, plan_request
from frontend.errors import BudgetExceeded, InternalError, SpendCap, Unavailable
from frontend.inference import Cancelled
from frontend.limits.slots import ClientLeft
from frontend.metrics import events
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
    as_file = tensor_files.preferred(request.accept_mimetypes)
    if as_file:
        tensor_files.check_request(asked)
    caller = require_caller("completions")
    deadline = time.monotonic() + settings.request_timeout_seconds
    cancellation = Cancellation()
    with ExitStack() as stack:
        stack.enter_context(_watcher.watch(request.environ, cancellation.fire))
        booking: Booking | None = None
        try:
            stack.enter_context(turn(caller, settings.request_timeout_seconds, cancellation.arm))
            limits = Limits(settings.max_total_tokens, max(deadline - time.monotonic(), 1.0))
            wanted = plan_request(asked, inference, limits)
            if as_file:
                tensor_files.check_plan(wanted)
            booking = stack.enter_context(_book(wanted, caller, cancellation))
            plan = replace(wanted, max_tokens=booking.hold.max_tokens)
            run = Run(plan, inference, g.request_id, limits, cancellation.arm)
            stack.callback(run.close)
            booking.follow(run)
            run.begin()
            if asked.stream:
                answer = _stream(run, booking, plan)
                answer.call_on_close(stack.pop_all().close)
            else:
                answer = tensor_files.answer(run.file()) if as_file else _sent(
                    run.body(), plan, "application/json", live=False)
                note_available(booking.settle(200, delivered=False))
        except (Cancelled, ClientLeft):
            if booking is not None and booking.lost:
                raise Unavailable("The request's tokens could not be held long enough. Send it again.") from None
            observation().code = GONE
            return Response(status=499)  # nobody is there to read it; the number is for the log
    if plan.max_tokens < wanted.max_tokens:
        answer.headers["X-Strata-Max-Tokens"] = (
            f"requested={wanted.max_tokens}, applied={plan.max_tokens}, reason=tokens")
    return answer


def _book(plan: Plan, caller: Caller, cancellation: Cancellation) -> Booking:
    """Hold what the plan needs, or as much of it as the caller has."""
    order = Order(g.request_id, caller.account_id, caller.key_id, plan.card.id, request.path, plan.request.user,
                  Need(plan.prompt_tokens, plan.choices, plan.max_tokens, plan.least_max_tokens))
    try:
        booking = Booking(parts().database, parts().leases, order, cancellation.fire)
    except (BudgetExceeded, SpendCap) as error:
        events.limit_hit("tokens" if isinstance(error, BudgetExceeded) else "spend")
        raise
    note_available(booking.hold.available)
    return booking


def _stream(run: Run, booking: Booking, plan: Plan) -> Response:
    observation().first_token(plan.card.id)
    answer = _sent(_events(run, booking, observation(), parts().settings.max_body_bytes), plan,
                   "text/event-stream; charset=utf-8", live=True)
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["X-Accel-Buffering"] = "no"  # tells nginx to pass each event on at once
    return answer


def _sent(parts: Iterator[bytes], plan: Plan, content_type: str, live: bool) -> Response:
    """The answer in one piece, or as it is rendered where it is too large for that.

    Many log probabilities are compressed if the client wishes. The bits of Activations are as good as random: of their
    base64 a compressor saves a quarter, slowly, which the answer as a file saves without one.
    """
    if not plan.renders_as_it_goes:
        return Response(parts if live else b"".join(parts), content_type=content_type)
    parts = _logged(parts, observation())
    if not plan.many_logprobs:
        return Response(parts, content_type=content_type)
    coding = choose(request.accept_encodings)
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


def _events(run: Run, booking: Booking, seen: Observation, max_body_bytes: int) -> Iterator[bytes]:
    """The events. An error in mid-stream is one event of its own, after which the stream ends without `[DONE]`.

    What was produced until then is charged, unless the error is a bug of ours or the request was for Activations, of
    which there are all or none.
    """
    log = _log.bind(**structlog.contextvars.get_contextvars())
    try:
        for event in run.events():
            if event == DONE:
                booking.settle(200)
            yield event
    except GeneratorExit:
        seen.code = GONE
        return
    except Exception as raised:
        if isinstance(raised, Cancelled) and not booking.lost:
            seen.code = GONE
            return
        error = api_error(raised, max_body_bytes)
        if booking.lost:
            error = Unavailable("The request's tokens could not be held long enough. Send it again.")
        seen.code = error.code
        log.error("a stream broke off", code=error.code, exc_info=raised)
        with suppress(Unavailable):
            whole = isinstance(error, InternalError) or run.plan.request.activations is not None
            booking.settle(error.status, charged=not whole)
        yield b"data: " + orjson.dumps(error_body(error)) + b"\n\n"
