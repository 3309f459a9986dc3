"""POST /v1/completions: reads the body, walks the request, and writes its answer whole or as events."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import orjson
import structlog
from flask import Blueprint, Response, g, request

from frontend.accounts.caller import Caller
from frontend.api import tensor_files
from frontend.api.answers import api_error
from frontend.api.auth import require_caller
from frontend.api.body import json_body
from frontend.api.compression import choose, compress
from frontend.api.counting import GONE, Observation, observation
from frontend.api.disconnect import DisconnectWatcher
from frontend.api.listing import query
from frontend.api.parts import parts
from frontend.api.quota import note_available, turn
from frontend.api.start import Cancellation, Start, while_away
from frontend.budgets.booking import Booking
from frontend.budgets.clamp import Need
from frontend.budgets.holds import Order
from frontend.completions.plan import Plan
from frontend.completions.request import CompletionRequest
from frontend.completions.walk import DONE, Limits, Run, plan_request
from frontend.errors import InternalError, Unavailable, error_body
from frontend.inference import Cancelled
from frontend.limits.slots import ClientLeft
from frontend.schemas.completions import load_completion

bp = Blueprint("completions", __name__)
_log = structlog.get_logger(__name__)
_watcher = DisconnectWatcher()
#: Seconds that a stream waits for its model before its head is sent, and between two comments after that.
MOMENT, COMMENT_EVERY = 10.0, 15.0
#: The header that says that max_tokens had to be lowered.
LOWERED = "X-Strata-Max-Tokens"


@dataclass(frozen=True)
class Form:
    """Another form of a whole answer than JSON: what of a plan it can't hold, and how it is written."""

    check_plan: Callable[[Plan], None]
    write: Callable[[Run], Response]


_FILE = Form(tensor_files.check_plan, lambda run: tensor_files.answer(run.file()))


@bp.post("/v1/completions")
def create_completion() -> Response:
    """Complete prompts."""
    query()
    asked = load_completion(json_body(), parts().settings.max_total_tokens)
    as_file = tensor_files.preferred(request.accept_mimetypes)
    if as_file:
        tensor_files.check_request(asked)
    return respond(asked, lambda: require_caller("completions"), _FILE if as_file else None)


def respond(asked: CompletionRequest, authenticate: Callable[[], Caller], form: Form | None = None) -> Response:
    """Walk a request whose fields are checked. Everything that can be refused is refused before the answer begins."""
    settings, inference = parts().settings, parts().inference
    observation().asked = asked.model
    caller = authenticate()
    timeout, cancellation = settings.request_timeout_seconds, Cancellation()
    deadline = time.monotonic() + timeout
    # How long it may wait for a Triton or a load; and so may those of its key that are before it in line.
    patience = settings.load_timeout_seconds if _is_served(asked.model) else 0.0
    cold = patience > 0 and not parts().places.is_warm(asked.model)
    with ExitStack() as stack:
        stack.enter_context(_watcher.watch(request.environ, cancellation.fire))
        start: Start | None = None
        try:
            stack.enter_context(turn(caller, timeout + patience if cold else timeout, cancellation.arm))
            deadline = time.monotonic() + timeout if cold else deadline
            limits = Limits(settings.max_total_tokens, max(deadline - time.monotonic(), 1.0))
            plan, away = while_away(lambda: plan_request(asked, inference, limits), patience, cancellation.fired)
            deadline += away  # what nobody can help does not count against the request's own time
            if form:
                form.check_plan(plan)
            visit = stack.enter_context(parts().places.visit(
                plan.card, caller.account_id, max(deadline - time.monotonic(), 1.0)))
            cancellation.arm(visit.give_up)
            start = Start(parts(), stack, visit, plan, _order(plan, caller), limits, deadline, cancellation)
            if not visit.wait(0):
                start.refuse_what_would_be_refused_later(caller)
            if asked.stream and not visit.wait(MOMENT):
                answer = _late_stream(start)
            else:
                visit.wait()
                run = start.begin()
                note_available(start.available)
                if asked.stream:
                    answer = _stream(run, start.booking)
                else:
                    answer = form.write(run) if form else _sent(run.body(), run.plan, "application/json", live=False)
                    note_available(start.booking.settle(200, delivered=False))
                if lowered := start.lowered():
                    answer.headers[LOWERED] = lowered
            if asked.stream:
                answer.call_on_close(stack.pop_all().close)
        except (Cancelled, ClientLeft):
            if start is not None and start.lost:
                raise _lost() from None
            observation().code = GONE
            return Response(status=499)  # nobody is there to read it; the number is for the log
    return answer


def _is_served(model: str) -> bool:
    """Whether there is such a model, as far as can be told while no Triton answers."""
    return model in parts().settings.models or parts().inference.knows(model)


def _order(plan: Plan, caller: Caller) -> Order:
    return Order(g.request_id, caller.account_id, caller.key_id, plan.card.id, request.path, plan.request.user,
                 Need(plan.prompt_tokens, plan.choices, plan.max_tokens, plan.least_max_tokens))


def _stream(run: Run, booking: Booking) -> Response:
    observation().first_token(run.plan.card.id)
    return _live(_events(run, booking, observation(), parts().settings.max_body_bytes), run.plan)


def _late_stream(start: Start) -> Response:
    """A stream whose head is sent before its model is Warm, so that the connection stays open."""
    return _live(_late_events(start, observation(), parts().settings.max_body_bytes), start.plan)


def _live(events: Iterator[bytes], plan: Plan) -> Response:
    answer = _sent(events, plan, "text/event-stream; charset=utf-8", live=True)
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
        error = _lost() if booking.lost else api_error(raised, max_body_bytes)
        seen.code = error.code
        log.error("a stream broke off", code=error.code, exc_info=raised)
        with suppress(Unavailable):
            whole = isinstance(error, InternalError) or run.plan.request.activations is not None
            booking.settle(error.status, charged=not whole)
        yield b"data: " + orjson.dumps(error_body(error)) + b"\n\n"


def _late_events(start: Start, seen: Observation, max_body_bytes: int) -> Iterator[bytes]:
    """Comments while the model is not Warm, then the events."""
    log = _log.bind(**structlog.contextvars.get_contextvars())
    waits = f": waiting for {start.plan.card.id} to become Warm\n\n".encode()
    try:
        yield waits
        while not start.visit.wait(COMMENT_EVERY):
            yield waits
        run = start.begin()
    except GeneratorExit:
        seen.code = GONE
        return
    except Exception as raised:
        if isinstance(raised, (Cancelled, ClientLeft)) and not start.lost:
            seen.code = GONE
            return
        error = _lost() if start.lost else api_error(raised, max_body_bytes)
        seen.code = error.code
        log.error("a stream ended before it began", code=error.code, exc_info=raised)
        with suppress(Unavailable):
            start.settle_unused(error.status)
        yield b"data: " + orjson.dumps(error_body(error)) + b"\n\n"
        return
    seen.first_token(start.plan.card.id)
    if lowered := start.lowered():
        yield f": {LOWERED}: {lowered}\n\n".encode()  # too late for a header
    yield from _events(run, start.booking, seen, max_body_bytes)


def _lost() -> Unavailable:
    return Unavailable("The request's tokens could not be held long enough. Send it again.")
