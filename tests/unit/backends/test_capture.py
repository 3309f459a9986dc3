"""What the worker keeps of a step, whichever of vLLM's model runners made it.

The runner here is a stand-in that says what ran: vLLM's second one, and compiled models, need a GPU.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.config import CompilationMode, CUDAGraphMode
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from backends.llama_vllm import capture, slab
from backends.llama_vllm.activations import FINAL_NORM_POINT, ActivationRequest
from backends.llama_vllm.capture import Capture, hand_out
from backends.llama_vllm.positions import Kind, Run, Selection
from backends.llama_vllm.slab import Layout, SlabReader

HIDDEN = 4


def numbers(point: int, positions: list[tuple[int, int]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The row of each (seed of its request, position) at a point of the model."""
    rows = [[1000 * seed + 10 * position + point + k / 8 for k in range(HIDDEN)] for seed, position in positions]
    return torch.tensor(rows).reshape(len(positions), HIDDEN).to(dtype)


class Runner:
    """Hands out what the model was told to hand out, in the shape of vLLM's first or second runner."""

    def __init__(self, second: bool) -> None:
        self.use_aux_hidden_state_outputs = False
        self.execute_model_state: Any = None
        self.points: tuple[int, ...] = ()
        self.switches = 0
        self._second = second

    def get_model(self) -> Runner:
        return self

    def set_aux_hidden_state_layers(self, points: tuple[int, ...]) -> None:
        self.points = points
        self.switches += 1

    def run(self, batch: dict[str, tuple[int, int, int]]) -> None:
        """batch: of each request its seed, first position and how many; two rows of padding follow."""
        positions = [(seed, start + i) for seed, start, count in batch.values() for i in range(count)] + [(0, 0)] * 2
        starts = np.cumsum([0, *(count for _, _, count in batch.values())])
        aux = [numbers(point, positions) for point in self.points] if self.use_aux_hidden_state_outputs else None
        self.execute_model_state = SimpleNamespace(
            aux_hidden_states=aux, hidden_states=numbers(FINAL_NORM_POINT, positions)
        )
        if self._second:
            self.execute_model_state.input_batch = SimpleNamespace(req_ids=[*batch], query_start_loc_np=starts)
        else:
            self.input_batch = SimpleNamespace(req_ids=[*batch])
            self.query_start_loc = SimpleNamespace(np=starts)


class Bench:
    """A capture, and the steps that a test makes up for it."""

    def __init__(
        self, folder: Path, second: bool = False, compiled: bool = False, kind: type[Capture] = Capture
    ) -> None:
        self.runner = Runner(second)
        self.config = SimpleNamespace(
            model_config=SimpleNamespace(
                get_hidden_size=lambda: HIDDEN,
                dtype=torch.float32,
                hf_text_config=SimpleNamespace(num_hidden_layers=3),
            ),
            compilation_config=SimpleNamespace(
                mode=CompilationMode.VLLM_COMPILE if compiled else CompilationMode.NONE,
                cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE if compiled else CUDAGraphMode.NONE,
            ),
            additional_config={"activation_layers": "all"},
        )
        self.capture = kind(self.runner, self.config)  # type: ignore[arg-type]
        self.readers: dict[str, SlabReader] = {}
        self._folder = folder

    def request(self, name: str, kind: Kind, points: list[int], dtype: str = "float32", start: int = 0) -> Any:
        """A request of 6 prompt tokens and max_tokens 4 that captures, as the scheduler announces it."""
        selection = Selection(kind, 6, 4, latest=4)
        layout = Layout(selection.rows, len(points), HIDDEN, dtype)
        if name not in self.readers:
            slab.create(self._folder / name, layout)
            self.readers[name] = SlabReader(self._folder / name, layout)
        asked = ActivationRequest(tuple(points), selection, layout)
        params = SamplingParams(extra_args=asked.extra_args(self._folder / name))
        return NewRequestData(name, [1] * 6, [], params, None, (), start, None)

    def step(
        self, batch: dict[str, tuple[int, int, int]], new: tuple[Any, ...] = (), finished: tuple[str, ...] = ()
    ) -> None:
        """One step with this batch: of each request its seed, first position and how many."""
        old = {name: start for name, (_, start, _) in batch.items() if name not in {each.req_id for each in new}}
        step = SchedulerOutput.make_empty()
        step.scheduled_new_reqs = list(new)
        step.scheduled_cached_reqs = CachedRequestData([*old], set(), [], {}, [], [*old.values()], [])
        step.num_scheduled_tokens = {name: count for name, (_, _, count) in batch.items()}
        step.finished_req_ids = set(finished)
        self.capture.before(step)
        self.runner.run(batch)
        self.capture.after()

    def holds(self, name: str, seed: int, points: list[int], position: int, row: int, length: int) -> bool:
        """Whether a slab holds these positions of a request."""
        reader, runs = self.readers[name], [Run(position, row, length)]
        expected = [numbers(point, [(seed, position + i) for i in range(length)]) for point in points]
        found = reader.tensor(runs)
        return reader.missing(runs) is None and torch.equal(found, torch.stack(expected).to(found.dtype))


@pytest.fixture(autouse=True)
def _first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "get_tensor_model_parallel_rank", lambda: 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_rows_go_where_they_belong(tmp_path: Path, second: bool, compiled: bool) -> None:
    bench = Bench(tmp_path, second, compiled)
    a = bench.request("a", "all", [2, 0, FINAL_NORM_POINT])
    b = bench.request("b", "prompt", [3], "bfloat16")
    bench.step({"a": (1, 0, 4), "plain": (9, 30, 1)}, new=(a,))
    bench.step({"plain": (9, 31, 1), "b": (2, 0, 6), "a": (1, 4, 2)}, new=(b,))
    bench.step({"a": (1, 6, 1), "b": (2, 6, 1), "plain": (9, 32, 1)})
    assert bench.holds("a", 1, [2, 0, FINAL_NORM_POINT], 0, 0, 7)
    assert bench.holds("b", 2, [3], 0, 0, 6)
    assert bench.readers["a"].missing([Run(7, 7, 1)]) == 7
    assert bench.readers["a"].failure() is None


def test_a_request_that_was_set_back_writes_its_rows_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, second=True)
    a = bench.request("a", "all", [1])
    bench.step({"a": (1, 0, 6)}, new=(a,))
    bench.step({"a": (7, 0, 7)}, new=(bench.request("a", "all", [1]),))
    assert bench.holds("a", 7, [1], 0, 0, 7)


def test_the_model_hands_out_only_what_a_step_is_to_keep(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.step({"plain": (9, 0, 5)})
    assert (bench.runner.use_aux_hidden_state_outputs, bench.runner.switches) == (False, 0)
    a, b = bench.request("a", "prompt", [2, 3]), bench.request("b", "all", [FINAL_NORM_POINT])
    bench.step({"a": (1, 0, 6), "b": (2, 0, 6)}, new=(a, b))
    assert (bench.runner.use_aux_hidden_state_outputs, bench.runner.points) == (True, (2, 3))
    bench.step({"a": (1, 6, 1), "b": (2, 6, 1)})
    assert (bench.runner.use_aux_hidden_state_outputs, bench.runner.points) == (False, ())
    assert bench.holds("b", 2, [FINAL_NORM_POINT], 0, 0, 7)


def test_a_compiled_model_hands_out_everything_from_the_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, compiled=True)
    assert (bench.runner.use_aux_hidden_state_outputs, bench.runner.points) == (True, (0, 1, 2, 3))
    bench.step({"plain": (9, 0, 5)})
    assert bench.runner.switches == 1


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "get_tensor_model_parallel_rank", lambda: 1)
    bench = Bench(tmp_path)
    bench.step({"a": (1, 0, 6)}, new=(bench.request("a", "all", [1]),))
    assert bench.readers["a"].missing([Run(0, 0, 1)]) == 0


def test_large_steps_are_kept_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "BLOCK_BYTES", 5 * 2 * HIDDEN * 4)
    bench = Bench(tmp_path)
    new = tuple(bench.request(name, "all", [1, 2]) for name in "abc")
    bench.step({"a": (1, 0, 6), "plain": (9, 3, 2), "b": (2, 0, 6), "c": (3, 0, 6)}, new=new)
    assert all(bench.holds(name, seed, [1, 2], 0, 0, 6) for seed, name in enumerate("abc", 1))


def test_what_ends_is_let_go_of(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.step({"a": (1, 0, 6)}, new=(bench.request("a", "all", [1]),))
    file = bench.capture._choices["a"].slab._file
    assert Path(f"/proc/self/fd/{file}").exists()
    bench.step({}, finished=("a",))
    assert not Path(f"/proc/self/fd/{file}").exists()


def test_a_batch_that_is_not_what_was_scheduled_fails_who_wanted_something_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.step({"a": (1, 0, 6)}, new=(bench.request("a", "all", [1]),))
    bench.runner.run = lambda batch: None  # type: ignore[method-assign, assignment]
    bench.runner.input_batch.req_ids = ["b"]
    bench.step({"a": (1, 6, 1)})
    assert bench.readers["a"].failure() == "ValueError: a choice was scheduled and is not in the batch"


def test_numbers_that_float16_lacks_fail_the_request(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    small, large = bench.request("small", "all", [1], "float16"), bench.request("large", "all", [1], "float16")
    bench.step({"small": (65, 0, 6), "large": (66, 0, 6)}, new=(small, large))
    assert bench.holds("small", 65, [1], 0, 0, 6)
    failure = bench.readers["large"].failure()
    assert failure is not None
    assert "beyond 65504" in failure


def test_a_slab_that_is_gone_disturbs_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    a, b = bench.request("a", "all", [1]), bench.request("b", "all", [1])
    slab.discard(tmp_path / "a")
    bench.step({"a": (1, 0, 6), "b": (2, 0, 6)}, new=(a, b))
    assert bench.holds("b", 2, [1], 0, 0, 6)


def test_the_embedding_is_copied_before_the_first_norm_writes_into_it() -> None:
    model, embedding = SimpleNamespace(aux_hidden_state_layers=(0, 1)), torch.ones(2, 3)
    outputs = hand_out(model, [], 0, embedding, None)
    embedding += 1
    assert hand_out(model, outputs, 1, embedding, embedding) is outputs
    assert hand_out(model, outputs, 2, embedding, embedding) is outputs
    assert [output.tolist() for output in outputs] == [[[1.0] * 3] * 2, [[4.0] * 3] * 2]
