"""How a running stream is left: the engine is asked to end it, and its call is cancelled only if that does not help."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from frontend.errors import DeadlineExceeded
from frontend.inference import Generation, Inference
from frontend.inference import client as generating
from frontend.inference.faults import Cancelled
from tests.small_triton import SmallTriton

#: Long enough to be left in the middle.
TOKENS = 200


class DeafTriton(SmallTriton):
    """One whose engines do not hear that they should end something."""

    def end(self, request_id: str) -> None:
        """Goes on."""


def running(kind: type[SmallTriton]) -> Iterator[SmallTriton]:
    server = kind(["tiny-llama"])
    server.states["tiny-llama_engine"] = "READY"
    server.token_seconds = 0.05
    yield server
    server.kill()


@pytest.fixture
def server() -> Iterator[SmallTriton]:
    yield from running(SmallTriton)


@pytest.fixture
def deaf() -> Iterator[SmallTriton]:
    yield from running(DeafTriton)


class Left:
    """Two prompts on one stream, and the call that carries them."""

    def __init__(self, server: SmallTriton, timeout: float = 60.0) -> None:
        self.inference = Inference([server.address])
        endpoint = self.inference.endpoints.at(server.address)
        self.calls: list[grpc.Call] = []
        opened = endpoint.stream

        def open_stream(*given: object, **named: object) -> grpc.Call:
            self.calls.append(opened(*given, **named))
            return self.calls[-1]

        endpoint.stream = open_stream
        self.cancel: Callable[[], object] = lambda: None
        sampling = b'{"max_tokens": %d}' % TOKENS
        self.events = self.inference.generate(
            "tiny-llama", server.address, [Generation((1,), sampling, True)] * 2, "req", timeout, self._started)
        next(self.events)

    def _started(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel

    def code(self) -> grpc.StatusCode:
        """How the stream ended."""
        return self.calls[0].code()


def test_closing_the_iterator_has_the_engine_end_it(server: SmallTriton) -> None:
    left = Left(server)
    left.events.close()
    assert server.cancelled == {"req/0", "req/1"}
    assert left.code() is grpc.StatusCode.OK
    assert server.active == 0


def test_another_thread_has_the_engine_end_it(server: SmallTriton) -> None:
    left = Left(server)
    threading.Timer(0.2, left.cancel).start()
    told: list[int] = []
    with pytest.raises(Cancelled):
        told.extend(token for event in left.events for token in event.token_ids)
    assert told.count(server.UNSENT) == 2  # for each of the prompts, what had been generated
    assert left.code() is grpc.StatusCode.OK
    left.cancel()
    assert len(left.calls) == 2  # its own, and the one that asked: once


def test_a_request_that_takes_too_long_is_ended_too(server: SmallTriton) -> None:
    left = Left(server, timeout=0.5)
    with pytest.raises(DeadlineExceeded):
        for _ in left.events:
            pass
    assert server.cancelled == {"req/0", "req/1"}
    assert left.code() is grpc.StatusCode.OK


def test_a_stream_of_a_deaf_engine_is_cancelled(deaf: SmallTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "GRACE", 0.3)
    left = Left(deaf)
    begun = time.monotonic()
    left.events.close()
    assert left.code() is grpc.StatusCode.CANCELLED
    assert time.monotonic() - begun < TOKENS * deaf.token_seconds / 2


def test_an_answer_that_was_read_to_its_end_asks_for_nothing(server: SmallTriton) -> None:
    server.token_seconds = 0.0
    left = Left(server)
    assert sum(len(event.token_ids) for event in left.events) == 2 * TOKENS - 1
    assert len(left.calls) == 1
    assert not server.cancelled
