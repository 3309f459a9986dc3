"""On a GPU rows are stored beside the next steps: once they have been copied, in order, and before their slab closes.

CUDA's streams, events and pinned memory are stand-ins here, whose copies are late until a test lets them through; the
rest is what runs on a GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends.llama_vllm import capture, gpu_worker
from backends.llama_vllm.gpu_worker import GPUCapture, LlamaGPUWorker
from backends.llama_vllm.positions import Run
from tests.unit.backends.test_capture import Bench


class Pinned(torch.Tensor):
    """Pinned memory: what is copied into it arrives when the stream gets there."""

    device_: GPU

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        assert non_blocking
        self.device_.say("copy")
        self.device_.on_their_way.append(lambda: super(Pinned, self).copy_(source))
        return self


class Event:
    """Complete once all that was on its stream before it is."""

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu
        self.complete = threading.Event()
        self.error: Exception | None = None

    def record(self) -> None:
        self._gpu.say("event")
        self._before, self._gpu.on_their_way = self._gpu.on_their_way, []
        self._gpu.events.append(self)

    def let_through(self, error: Exception | None = None) -> None:
        self.error = error
        for copy in self._before:
            copy()
        self.complete.set()

    def synchronize(self) -> None:
        assert self.complete.wait(30)
        if self.error is not None:
            raise self.error


class Stream:
    """A side stream."""

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu

    def wait_stream(self, other: object) -> None:
        assert other == "the model's stream"
        self._gpu.say("wait for the model")


class GPU:
    """What was done in which order, and on which stream."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.on_their_way: list[Callable[[], object]] = []
        self.events: list[Event] = []
        self._side = False
        pinned = type("PinnedHere", (Pinned,), {"device_": self})
        self.cuda = SimpleNamespace(
            Stream=lambda: Stream(self), Event=lambda blocking: Event(self), stream=self._on_side,
            current_stream=lambda: "the model's stream",
        )  # fmt: skip
        self.torch = SimpleNamespace(
            cuda=self.cuda, tensor=lambda rows, pin_memory: torch.tensor(rows),
            empty=lambda shape, dtype, pin_memory: torch.zeros(shape, dtype=dtype).as_subclass(pinned),
        )  # fmt: skip

    def say(self, what: str) -> None:
        self.done.append(f"{what}, beside" if self._side else what)

    @contextmanager
    def _on_side(self, stream: Stream) -> Iterator[None]:
        self._side = True
        yield
        self._side = False


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> GPU:
    gpu = GPU()
    monkeypatch.setattr(capture, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(gpu_worker, "torch", gpu.torch)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: gpu.say("keep the memory"))
    return gpu


@pytest.fixture
def bench(gpu: GPU, tmp_path: Path) -> Bench:
    return Bench(tmp_path, second=True, compiled=True, kind=GPUCapture)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.01)


def is_open(file: int, slab: Path) -> bool:
    entry = Path(f"/proc/self/fd/{file}")
    return entry.exists() and entry.readlink() == slab


def test_rows_are_there_only_once_they_are_copied(bench: Bench, gpu: GPU) -> None:
    bench.step({"a": (1, 0, 4)}, new=(bench.request("a", "all", [1, 2]),))
    bench.step({"a": (1, 4, 2)})
    first, second = gpu.events
    second.let_through()
    assert bench.readers["a"].missing([Run(0, 0, 4)]) == 0
    assert bench.readers["a"].missing([Run(4, 4, 2)]) == 4  # it waits for what was before it
    first.let_through()
    until(lambda: bench.readers["a"].missing([Run(0, 0, 6)]) is None)
    assert bench.holds("a", 1, [1, 2], 0, 0, 6)


def test_the_copy_waits_for_the_model_and_holds_the_memory_that_it_reads(bench: Bench, gpu: GPU) -> None:
    bench.step({"a": (1, 0, 4)}, new=(bench.request("a", "all", [1]),))
    assert gpu.done == ["wait for the model", "copy, beside", "event, beside", "keep the memory"]


def test_rows_that_lie_apart_are_gathered_in_one_copy(bench: Bench, gpu: GPU) -> None:
    new = tuple(bench.request(name, "all", [1]) for name in "ab")
    bench.step({"a": (1, 0, 3), "plain": (9, 0, 5), "b": (2, 0, 4)}, new=new)
    (event,) = gpu.events
    event.let_through()
    until(lambda: bench.readers["b"].missing([Run(0, 0, 4)]) is None)
    assert bench.holds("a", 1, [1], 0, 0, 3)
    assert bench.holds("b", 2, [1], 0, 0, 4)


def test_a_choice_that_ended_is_let_go_of_after_its_last_rows(bench: Bench, gpu: GPU, tmp_path: Path) -> None:
    bench.step({"a": (1, 0, 6)}, new=(bench.request("a", "all", [1]),))
    file = bench.capture._choices["a"].slab._file
    bench.step({}, finished=("a",))
    assert is_open(file, tmp_path / "a")
    gpu.events[0].let_through()
    until(lambda: not is_open(file, tmp_path / "a"))
    assert bench.holds("a", 1, [1], 0, 0, 6)


def test_a_copy_that_fails_fails_whose_rows_it_had_and_nobody_after(bench: Bench, gpu: GPU) -> None:
    bench.step({"a": (1, 0, 6)}, new=(bench.request("a", "all", [1]),))
    bench.step({"b": (2, 0, 6)}, new=(bench.request("b", "all", [1]),))
    broken, whole = gpu.events
    broken.let_through(RuntimeError("CUDA error: an illegal memory access"))
    whole.let_through()
    until(lambda: bench.readers["b"].missing([Run(0, 0, 6)]) is None)
    assert bench.holds("b", 2, [1], 0, 0, 6)
    assert bench.readers["a"].failure() == "RuntimeError: CUDA error: an illegal memory access"
    assert bench.readers["a"].missing([Run(0, 0, 6)]) == 0


def test_the_worker_for_gpus_captures_like_this(bench: Bench) -> None:
    worker = object.__new__(LlamaGPUWorker)
    worker.model_runner, worker.vllm_config = bench.runner, bench.config
    assert type(worker._make_capture()) is GPUCapture
