"""Activations are Transformers' own, whatever vLLM's scheduler does, and capturing them changes nothing else.

These run the engine in this process, around a small KV cache so that requests are set back, against the same
checkpoint in Transformers in float32.
"""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoTokenizer

from deploy.local import checkpoints as checkpoints_
from model_repository import catalog
from tests.integration.faulty_worker import BREAKS_GATHERING, BREAKS_STORING
from tests.reference import LAYER_ERROR, Reference

MODELS = catalog.load()
#: How many times `tests.reference`'s error is allowed. On English, float32 in Transformers is up to 0.8 of it away from
#: float64 in smollm2-135m, and vLLM's, whose sums have another order, about twice as far.
TIMES = {"tiny-llama": 1.0, "smollm2-135m": 3.0}
#: Tokens of a prefill chunk; blocks of the KV cache; tokens whose every Layer fits the pool of slabs.
CHUNK, BLOCKS, POOL = 256, 80, 2731

pytestmark = pytest.mark.timeout(400)


class Call:
    """A caller that collects what it is sent."""

    name = ""

    def __init__(self, prompt: Sequence[int], layers: list[str]) -> None:
        self.prompt, self.layers = list(prompt), layers
        self.failure: tuple[str, str] | None = None
        self.gone = False
        self._ended = threading.Event()
        self.messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any], final: bool) -> None:
        self.messages.append(message)
        if final:
            self._ended.set()

    def fail(self, failure: Any, message: str) -> None:
        self.failure = failure.value, message
        self._ended.set()

    def cancelled(self) -> bool:
        return self.gone

    def wait(self) -> Call:
        assert self._ended.wait(240), "no answer"
        return self

    def _of(self, index: int, name: str) -> list[Any]:
        return [message[name] for message in self.messages if message["index"][0] == index and name in message]

    def tokens(self, index: int = 0) -> list[int]:
        return [int(token) for part in self._of(index, "token_ids") for token in part]

    def logprobs(self, index: int = 0) -> np.ndarray:
        return np.concatenate(self._of(index, "logprobs"))

    def positions(self, index: int = 0) -> list[int]:
        return [int(position) for part in self._of(index, "activation_rows") for position in part]

    def activations(self, index: int = 0) -> torch.Tensor:
        """[layers, positions, hidden]"""
        assert self.failure is None, self.failure
        return torch.cat(self._of(index, "activations"), dim=1)


@dataclass
class Figures:
    """The engine's figures as last published."""

    values: dict[str, float] = field(default_factory=dict)

    def gauge(self, name: str, help: str, value: float, labels: Any = ()) -> None:
        self.values[name] = value

    def counter(self, name: str, help: str, total: float, labels: Any = ()) -> None:
        self.values[name] = total

    def later(self, name: str) -> float:
        """A figure, as the engine knows it now."""
        time.sleep(1.6)
        return self.values[name]


class Bench:
    """The engine, and Transformers with the same weights."""

    def __init__(self, model: catalog.Model, folder: Path, **engine_args: Any) -> None:
        from backends.llama_vllm.engine import Engine
        from backends.llama_vllm.settings import EngineSettings

        self.layers = ["embedding", *map(str, range(model.n_layers)), "final_norm"]
        self.hidden_size = model.hidden_size
        #: Of a token's Activations at every Layer, in float32.
        self.row_bytes = len(self.layers) * model.hidden_size * 4
        self.pool_mb = POOL * self.row_bytes // 2**20
        length = {"max_model_len": 2048, "max_num_batched_tokens": CHUNK}
        arguments = model.engine()["engine_args"] | length | engine_args
        self.figures = Figures()
        stated = model.engine() | {"activation_pool_mb": self.pool_mb, "engine_args": arguments}
        self.engine = Engine(EngineSettings(**stated), self.figures)
        self._reference, self._times = Reference.of(folder / model.checkpoint), TIMES[model.id]
        # Python's own documentation, since after ids at random real weights make numbers that float32 hardly holds:
        # Transformers itself is then further from its float64 than an engine may be from it.
        tokenizer = AutoTokenizer.from_pretrained(folder / model.checkpoint)
        self._english: list[int] = tokenizer("\n".join(topics.values())[:200_000], add_special_tokens=False).input_ids

    def prompt(self, tokens: int, seed: int) -> list[int]:
        """So much of an English text, from somewhere in it."""
        start = int(np.random.default_rng(seed).integers(len(self._english) - tokens))
        return self._english[start : start + tokens]

    def start(
        self, prompt: Sequence[int], layers: list[str] | None = None, positions: list[str] | None = None,
        dtype: str | None = None, stream: bool = False, **sampling: Any,
    ) -> Call:
        from backends.llama_vllm.activations import parse_activations
        from backends.llama_vllm.sampling import parse_sampling

        ids = np.array(prompt, np.int32)
        fields = parse_sampling(json.dumps({"temperature": 0} | sampling).encode(), ids, self.engine.limits)
        wanted = parse_activations(
            layers and [layer.encode() for layer in layers], positions and [word.encode() for word in positions],
            dtype.encode() if dtype else None, len(ids), fields, self.engine.activation_limits)
        call = Call(prompt, layers or [])
        self.engine.submit(ids, fields, stream, call, wanted)
        return call

    def ask(self, *args: Any, **fields: Any) -> Call:
        return self.start(*args, **fields).wait()

    def check(self, call: Call, index: int = 0, positions: Sequence[int] | None = None) -> None:
        """That a call's activations are Transformers' at these positions; None: at every one that ran."""
        ids = call.prompt + call.tokens(index)[:-1]
        expected = list(range(len(ids)) if positions is None else positions)
        assert call.positions(index) == expected
        found = call.activations(index).numpy()
        assert found.shape == (len(call.layers), len(expected), self.hidden_size)
        right = {str(layer): rows for layer, rows in self._reference.run(ids).items()}
        for layer, got in zip(call.layers, found, strict=True):
            right[layer].check(got, expected, self._times)

    def slabs(self) -> list[Path]:
        """The slabs that are there now."""
        return list(self.engine._slabs.path.iterdir())


def rounding(exact: torch.Tensor) -> torch.Tensor:
    """How far apart two runs may be, for each row: what `tests.reference` allows of numbers as large as its own."""
    return LAYER_ERROR * exact.abs().amax(dim=-1, keepdim=True).clamp(min=1)


@pytest.fixture(scope="module")
def checkpoint(checkpoints: Path) -> Iterator[Path]:
    """The folder with tiny-llama's, and what the engine reads of the environment."""
    checkpoints_.build(MODELS["tiny-llama"], checkpoints)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STRATA_CHECKPOINTS", str(checkpoints))
        environment.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        environment.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        environment.setenv("VLLM_LOGGING_LEVEL", "WARNING")
        environment.setenv("HF_HUB_OFFLINE", "1")
        yield checkpoints


@pytest.fixture(scope="module", params=[
    "tiny-llama", pytest.param("smollm2-135m", marks=pytest.mark.slow)])  # minutes, on real weights
def bench(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Bench]:
    model = MODELS[request.param]
    checkpoints_.build(model, checkpoint)
    faulty = "tests.integration.faulty_worker.FaultyWorker"
    running = Bench(model, checkpoint, num_gpu_blocks_override=BLOCKS, worker_cls=faulty)
    yield running
    folder = running.engine._slabs.path
    running.engine.shutdown()
    assert not folder.exists()


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "bench" not in request.fixturenames:
        return
    bench = request.getfixturevalue("bench")
    deadline = time.monotonic() + 10
    while bench.slabs():
        assert time.monotonic() < deadline, bench.slabs()
        time.sleep(0.05)


def test_one_request_at_every_layer(bench: Bench) -> None:
    call = bench.ask(bench.prompt(50, 0), bench.layers, max_tokens=12, ignore_eos=True)
    assert len(call.positions()) == 50 + 12 - 1
    bench.check(call)


def test_a_prompt_of_several_chunks(bench: Bench) -> None:
    bench.check(bench.ask(bench.prompt(3 * CHUNK + 17, 1), bench.layers, max_tokens=3, ignore_eos=True))


def test_a_large_answer_comes_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.llama_vllm.recording.PART_BYTES", 42 * bench.row_bytes)
    call = bench.ask(bench.prompt(100, 19), bench.layers, max_tokens=3, ignore_eos=True)
    bench.check(call)
    assert [len(message.get("activation_rows", ())) for message in call.messages] == [42, 42, 18]
    assert ["finish_reason" in message for message in call.messages] == [False, False, True]


def test_selectors_are_slices_of_all(bench: Bench) -> None:
    ids, p, m = bench.prompt(40, 2), 40, 9
    whole = bench.ask(ids, bench.layers, max_tokens=m, ignore_eos=True).activations()
    for positions, expected in [
        (["all"], range(p + m - 1)), (["prompt"], range(p)), (["generated"], range(p, p + m - 1)),
        (["last"], [p + m - 2]), (["-1", "0"], [p - 1, 0]), (["45", "3", "4", "-2"], [45, 3, 4, p - 2]),
    ]:
        call = bench.ask(ids, bench.layers, positions, max_tokens=m, ignore_eos=True)
        assert call.positions() == list(expected)
        slice_ = whole[:, list(expected)]
        assert bool(((call.activations() - slice_).abs() <= rounding(slice_)).all()), positions


def test_layers_come_in_the_order_asked(bench: Bench) -> None:
    call = bench.ask(bench.prompt(20, 3), ["final_norm", "3", "embedding", "0"], ["7", "-1"], max_tokens=2)
    bench.check(call, positions=[7, 19])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_smaller_data_types_are_the_same_numbers_rounded(bench: Bench, dtype: str) -> None:
    ids = bench.prompt(30, 4)
    exact = bench.ask(ids, bench.layers, max_tokens=4, ignore_eos=True).activations()
    rounded = bench.ask(ids, bench.layers, dtype=dtype, max_tokens=4, ignore_eos=True).activations()
    assert rounded.dtype == getattr(torch, dtype)
    step = torch.finfo(rounded.dtype).eps * exact.abs() + rounding(exact)
    assert bool(((rounded.float() - exact).abs() <= step).all())


def test_sixteen_at_once_beside_plain_ones(bench: Bench) -> None:
    random = np.random.default_rng(5)
    calls, plain = [], []
    for number in range(16):
        layers = [str(layer) for layer in random.permutation(bench.layers)[: random.integers(1, 7)]]
        ids = bench.prompt(int(random.integers(1, 90)), 100 + number)
        positions = [None, ["prompt"], ["generated"], ["last"], ["-1"]][number % 5]
        calls.append((bench.start(ids, layers, positions, max_tokens=10, ignore_eos=True), len(ids), positions))
        plain.append(bench.start(ids, max_tokens=10, ignore_eos=True))
    for (call, p, positions), beside in zip(calls, plain, strict=True):
        word = positions[0] if positions else "all"
        wanted = {"all": None, "prompt": range(p), "generated": range(p, p + 9), "last": [p + 8], "-1": [p - 1]}[word]
        bench.check(call.wait(), positions=wanted)
        assert beside.wait().tokens() == call.tokens()


def test_a_hit_in_the_prefix_cache_hides_nothing(bench: Bench) -> None:
    ids = bench.prompt(200, 6)
    bench.ask(ids, max_tokens=1)
    for positions, wanted in [(None, None), (["0", "-1"], [0, 199]), (["-1"], [199]), (["last"], [202])]:
        bench.check(bench.ask(ids, bench.layers, positions, max_tokens=4, ignore_eos=True), positions=wanted)


def test_every_choice_of_a_sampled_request(bench: Bench) -> None:
    call = bench.ask(bench.prompt(35, 7), bench.layers, n=4, temperature=1, max_tokens=15, seed=3)
    for index in range(4):
        bench.check(call, index)
    assert len({tuple(call.tokens(index)) for index in range(4)}) == 4


def test_requests_that_are_set_back_and_run_again(bench: Bench) -> None:
    before = bench.figures.later("strata_preemptions_total")
    # Each begins with 6 blocks and ends with 9, of which 80 are there for 12.
    calls = [
        bench.start(bench.prompt(180, 200 + number), bench.layers[number % 3 :: 3], max_tokens=100, ignore_eos=True)
        for number in range(12)]
    for call in calls:
        bench.check(call.wait())
    assert bench.figures.later("strata_preemptions_total") > before


def test_a_neighbour_that_leaves(bench: Bench) -> None:
    leaving = [bench.start(bench.prompt(100, 300 + number), bench.layers, max_tokens=400, ignore_eos=True, stream=True)
               for number in range(2)]
    staying = bench.start(bench.prompt(90, 302), bench.layers, max_tokens=150, ignore_eos=True)
    time.sleep(0.3)
    for call in leaving:
        call.gone = True
    bench.check(staying.wait())
    assert [call.wait().failure for call in leaving] == [("CANCELLED", "the caller went away")] * 2


def test_capturing_changes_no_token_and_no_probability(bench: Bench) -> None:
    ids = [bench.prompt(60 + 7 * number, 400 + number) for number in range(6)]
    fields = {"max_tokens": 20, "temperature": 0.8, "seed": 11, "logprobs": 5, "ignore_eos": True}
    without = [bench.start(each, **fields) for each in ids]
    for call in without:
        call.wait()
    beside = [bench.start(each, bench.layers if number % 2 else None, **fields) for number, each in enumerate(ids)]
    for one, other in zip(without, beside, strict=True):
        assert one.tokens() == other.wait().tokens()
        assert np.allclose(one.logprobs(), other.logprobs(), rtol=0, atol=1e-4)


def test_the_end_by_a_stop_string_or_by_a_token(bench: Bench) -> None:
    ids, fields = bench.prompt(25, 8), {"max_tokens": 40, "temperature": 1, "seed": 8, "ignore_eos": True}
    free = bench.ask(ids, **fields).tokens()
    texts = [bench.engine._table.bytes[token].decode(errors="replace") for token in free]
    # The stop string is the end of a token, so that it cuts the text inside of it.
    place, stop = next(
        (n, text[1:]) for n, text in enumerate(texts)
        if n > 5 and len(text) > 2 and text.isascii() and text[1:] not in "".join(texts[:n]) + text[:-1])
    end = len(ids) + place
    for word, wanted in (("all", range(end)), ("last", [end - 1]), ("generated", range(len(ids), end))):
        call = bench.ask(ids, bench.layers, [word], stop=[stop], **fields)
        assert call.tokens() == free[: place + 1]
        bench.check(call, positions=wanted)
    call = bench.ask(ids, bench.layers, stop_token_ids=[free[place]], **fields)
    assert call.tokens() == free[: free.index(free[place]) + 1]
    bench.check(call)
    late = bench.ask(ids, bench.layers, stop_token_ids=[free[place]], min_tokens=place + 3, **fields)
    assert len(late.tokens()) > place + 2
    bench.check(late)


def test_a_single_token(bench: Bench) -> None:
    ids = bench.prompt(15, 9)
    bench.check(bench.ask(ids, bench.layers, max_tokens=1))
    none = bench.ask(ids, bench.layers, ["generated"], max_tokens=1)
    assert none.activations().shape == (len(bench.layers), 0, bench.hidden_size)
    assert none.positions() == []
    bench.check(bench.ask(ids[:1], bench.layers, max_tokens=1))
    bench.check(bench.ask(ids, bench.layers, ["last"], max_tokens=1), positions=[14])


def test_streams_have_them_in_the_last_response(bench: Bench) -> None:
    call = bench.ask(bench.prompt(20, 10), ["1"], max_tokens=8, stream=True, ignore_eos=True)
    bench.check(call)
    assert [("activations" in m, "finish_reason" in m) for m in call.messages][-1] == (True, True)
    assert sum("activations" in message for message in call.messages) == 1


def test_a_listed_position_that_never_ran_fails_the_request(bench: Bench) -> None:
    ids, fields = bench.prompt(25, 8), {"max_tokens": 40, "temperature": 1, "seed": 8, "ignore_eos": True}
    tokens = bench.ask(ids, **fields).tokens()
    stop = tokens[5]
    end = 25 + tokens.index(stop) - 1
    call = bench.ask(ids, ["1"], ["0", "33"], stop_token_ids=[stop], **fields)
    assert call.failure == ("INTERNAL", f"position 33 was asked for, but the completion ended at position {end}; "
                                        "ask for prompt positions, or set ignore_eos or min_tokens")


@pytest.mark.parametrize(("position", "says"), [
    (BREAKS_GATHERING, "gathering broke"), (BREAKS_STORING, "storing broke")])
def test_a_capture_that_breaks_fails_its_own_request_alone(bench: Bench, position: int, says: str) -> None:
    neighbour = bench.start(bench.prompt(1700, 11), ["2"], ["prompt"], max_tokens=130, ignore_eos=True)
    broken = bench.start(bench.prompt(1830, 12), ["1"], [str(position)], max_tokens=2)
    plain = bench.start(bench.prompt(30, 13), max_tokens=30, ignore_eos=True)
    assert broken.wait().failure is not None
    assert broken.failure[0] == "INTERNAL"
    assert says in broken.failure[1]
    bench.check(neighbour.wait(), positions=range(1700))
    assert len(plain.wait().tokens()) == 30


def test_requests_wait_for_shared_memory_in_order(bench: Bench) -> None:
    # Each takes more than half of the pool, and seconds, and stays below the positions that break.
    ids = bench.prompt(1200, 14)
    calls = [bench.start(ids, bench.layers, max_tokens=500, ignore_eos=True) for _ in range(3)]
    plain = bench.start(bench.prompt(10, 15), max_tokens=2)
    assert plain.wait().failure is None
    assert bench.figures.later("strata_activation_requests_waiting") >= 1
    assert 1600 * bench.row_bytes < bench.figures.values["strata_activation_bytes"] <= bench.pool_mb * 2**20
    calls[1].gone = True
    assert calls[1].wait().failure == ("CANCELLED", "the caller went away")
    for call in (calls[0], calls[2]):
        bench.check(call.wait())
    assert bench.figures.later("strata_activation_bytes") == 0


def test_shared_memory_that_somebody_else_fills_is_a_clear_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        call = bench.ask(bench.prompt(10, 16), bench.layers, max_tokens=2)
    assert call.failure == ("UNAVAILABLE", "there is no shared memory for the activations: No space left on device")
    bench.check(bench.ask(bench.prompt(10, 16), bench.layers, max_tokens=2))
    assert bench.figures.later("strata_activation_bytes") == 0


def of_triton(process: psutil.Process) -> bool:
    """Whether it is of the stack that other tests started beside this one."""
    return any("triton" in parent.name() for parent in process.parents())


def test_an_engine_that_is_killed_fails_what_runs_and_what_waits(bench: Bench) -> None:
    ids = bench.prompt(1800, 17)
    calls = [bench.start(ids, bench.layers, max_tokens=200, ignore_eos=True) for _ in range(2)]
    time.sleep(0.5)
    (core,) = [process for process in psutil.Process().children(recursive=True)  # its only worker lives in it
               if "VLLM::EngineCore" in " ".join(process.cmdline()) and not of_triton(process)]
    core.send_signal(signal.SIGKILL)
    for call in calls:
        assert call.wait().failure is not None
        assert call.failure[0] == "UNAVAILABLE"
    deadline = time.monotonic() + 240
    while True:
        call = bench.ask(bench.prompt(20, 18), bench.layers, max_tokens=3, ignore_eos=True)
        if call.failure is None:
            break
        assert call.failure[0] == "UNAVAILABLE"
        assert time.monotonic() < deadline, "the engine did not come back"
        time.sleep(1)
    bench.check(call)
    assert bench.figures.later("strata_activation_bytes") == 0


@pytest.mark.slow
def test_a_model_spread_over_two_workers(checkpoint: Path) -> None:
    spread = Bench(MODELS["tiny-llama"], checkpoint, tensor_parallel_size=2)
    calls = [spread.start(spread.prompt(40 * number + 30, 500 + number), spread.layers, max_tokens=6, ignore_eos=True)
             for number in range(8)]
    for call in calls:
        spread.check(call.wait())
    spread.engine.shutdown()


@pytest.mark.slow
def test_a_compiled_model_by_the_script_for_gpus(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "deploy.check_gpu_activations", "--model", "tiny-llama", "--prompts", "4",
               "--prompt-tokens", "300", "--max-tokens", "4", "--repeats", "1", "--tolerance", "1e-4"]
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_COMPILE_DISABLE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "final_norm: largest relative error" in done.stdout
    assert "all layers, all positions" in done.stdout
