"""Counts every request when its answer ends, under labels that a caller can't make up."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import cast

from flask import Flask, Response, g, request

from frontend.api.parts import parts
from frontend.metrics import events

#: The route of requests to paths, or with methods, that there are none of.
_NO_ROUTE = "none"
#: The code of requests whose clients did not wait for the answer.
GONE = "client_gone"


@dataclass
class Observation:
    """What is known of a request until it ends: the model that it asks for, which there may be none of, and the code of
    what went wrong."""

    started: float = field(default_factory=time.perf_counter)
    asked: str = events.NO_MODEL
    code: str = events.OK

    def first_token(self, model: str) -> None:
        """The first token of a stream is here, from a model that there is."""
        events.first_token(model, time.perf_counter() - self.started)


def observation() -> Observation:
    """The current request's. A stream, which runs outside of the request's context, takes it along."""
    return cast(Observation, g.observation)


def count_requests(app: Flask) -> None:
    """Count each request of an application."""

    @app.before_request
    def _begin() -> None:
        g.observation = Observation()
        events.request_began()

    @app.after_request
    def _end(answer: Response) -> Response:
        seen, inference = observation(), parts().inference
        rule = request.url_rule
        method, route = (request.method, rule.rule) if rule else ("", _NO_ROUTE)

        def ended() -> None:
            model = seen.asked if inference.knows(seen.asked) else events.NO_MODEL
            events.request_ended(method, route, model, answer.status_code, seen.code,
                                 time.perf_counter() - seen.started)

        # A stream ends long after its head is written, and on a server's thread outside of the request's context. A
        # file that the server is to pass on by itself would never say that it has ended.
        answer.direct_passthrough = False
        answer.call_on_close(ended)
        return answer
