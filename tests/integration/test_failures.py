"""What breaks under a request breaks with the documented error, and the rest goes on."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

import httpx
import psutil
import pytest
import tritonclient.grpc as tritonclient

from tests.stack import Stack

pytestmark = pytest.mark.timeout(400)
Body = dict[str, object]
STUB = "triton_python_backend_stub"
LONG: Body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}


def find(stack: Stack, matches: Callable[[str], bool], above: str) -> psutil.Process:
    """The process that matches below Triton's stub of an entry, or that stub itself."""
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        if has_ended(process):
            continue
        lineage = [" ".join(one.cmdline()) for one in (process, *process.parents())]
        if matches(lineage[0]) and any(STUB in command and above in command for command in lineage):
            return process
    raise LookupError("no such process")


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or a zombie that its parent has not asked for yet: Triton asks late for its stubs."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def end_soon(processes: list[psutil.Process], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if not has_ended(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def break_off(http: httpx.Client, kill: Callable[[], object]) -> list[str]:
    """Start a long stream, kill something, and read the stream to its end. Returns the data of its events."""
    with http.stream("POST", "/v1/completions", json=LONG) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        data = [next(lines)]
        kill()
        data += [line for line in lines if line]
    return [line.removeprefix("data: ") for line in data]


def comes_back(http: httpx.Client, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        answer = http.post("/v1/completions", json={"model": "tiny-llama", "prompt": "x", "max_tokens": 1})
        if answer.status_code == 200:
            return
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) in {
            (404, "model_not_found"), (502, "inference_error"), (503, "model_unavailable"), (503, "unavailable")}
        assert time.monotonic() < deadline, error
        time.sleep(1)


def check_broken(events: list[str]) -> None:
    assert events[-1] != "[DONE]"
    error = json.loads(events[-1])["error"]
    assert (error["type"], error["code"]) == ("server_error", "inference_error")


def test_an_engine_that_dies_ends_its_streams_and_is_started_again(stack: Stack, http: httpx.Client) -> None:
    core = find(stack, lambda command: "EngineCore" in command, above="tiny-llama_engine")
    family = [core, *core.children(recursive=True)]
    check_broken(break_off(http, core.kill))
    other = http.post("/v1/completions", json={"model": "smollm2-135m", "prompt": "x", "max_tokens": 1})
    assert other.status_code == 200
    comes_back(http, 120)
    end_soon(family)


def test_a_stub_that_is_killed_leaves_no_process_and_is_replaced(stack: Stack, http: httpx.Client) -> None:
    stub = find(stack, lambda command: STUB in command, above="tiny-llama_engine")
    family = stub.children(recursive=True)
    assert any("EngineCore" in " ".join(process.cmdline()) for process in family)
    check_broken(break_off(http, stub.kill))
    end_soon([stub, *family])
    assert http.post("/v1/completions", json={"model": "smollm2-135m", "prompt": "x", "max_tokens": 1}).is_success
    comes_back(http, 180)


def test_a_tokenizer_that_is_killed_is_replaced(stack: Stack, http: httpx.Client) -> None:
    stub = find(stack, lambda command: STUB in command, above="tiny-llama_tokenizer")
    stub.kill()
    other = http.post("/v1/completions", json={"model": "smollm2-135m", "prompt": "x", "max_tokens": 1})
    assert other.status_code == 200
    comes_back(http, 60)
    with closing(tritonclient.InferenceServerClient(stack.grpc)) as triton:  # the ensemble has kept its parts
        assert triton.is_model_ready("tiny-llama")
