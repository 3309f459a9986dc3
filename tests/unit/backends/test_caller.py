"""Nobody asks whether a request is cancelled while its last response is sent: Triton would crash."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

FINAL = 1


class Sender:
    """A sender of Triton's: a call of it ends when the test lets it."""

    def __init__(self) -> None:
        self.sending, self.asking = threading.Event(), threading.Event()
        self.sent, self.answered = threading.Event(), threading.Event()
        self.flags = 0
        self.broken = False

    def send(self, response: object = None, flags: int = 0) -> None:
        self.sending.set()
        assert self.sent.wait(10)
        if self.broken:
            raise RuntimeError("no room")
        self.flags |= flags

    def is_cancelled(self) -> bool:
        self.asking.set()
        assert self.answered.wait(10)
        return True


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The edge of the engine, beside what a stub brings along."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL, InferenceResponse=lambda *given, **named: None,
        Tensor=lambda *given: None))
    monkeypatch.delitem(sys.modules, "backends.llama_vllm.model", raising=False)
    from backends.llama_vllm import model as found

    return found


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def last(caller: Any) -> None:
    caller.send({"index": np.zeros(1, np.int32)}, True)


def test_the_last_response_waits_for_who_asks(model: Any) -> None:
    sender = Sender()
    sender.sent.set()
    caller = model.TritonCaller(sender, "req/0")
    asking = in_a_thread(caller.cancelled)
    assert sender.asking.wait(10)
    closing = in_a_thread(lambda: last(caller))
    assert not sender.sending.wait(0.3)
    sender.answered.set()
    asking.join()
    closing.join()
    assert sender.flags == FINAL
    assert not caller.cancelled()


def test_who_asks_does_not_wait_for_a_response(model: Any) -> None:
    sender = Sender()
    sender.answered.set()
    caller = model.TritonCaller(sender, "req/0")
    closing = in_a_thread(lambda: last(caller))
    assert sender.sending.wait(10)
    assert not caller.cancelled()
    assert not sender.asking.is_set()
    sender.sent.set()
    closing.join()


def test_a_response_that_could_not_be_sent_leaves_the_request_open(model: Any) -> None:
    sender = Sender()
    sender.sent.set()
    sender.answered.set()
    sender.broken = True
    caller = model.TritonCaller(sender, "req/0")
    with pytest.raises(RuntimeError, match="no room"):
        last(caller)
    assert caller.cancelled()


def test_ending_it_closes_it(model: Any) -> None:
    sender = Sender()
    sender.sent.set()
    caller = model.TritonCaller(sender, "req/0")
    caller.end()
    assert sender.flags == FINAL
    assert not caller.cancelled()
