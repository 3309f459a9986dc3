"""How a vLLM worker captures Activations: from the model's own auxiliary outputs, into the slabs that requests name.

No hooks: vLLM's models can hand out the residual stream between their blocks (for EAGLE-3's draft models), through
eager mode, torch.compile and CUDA graphs alike. `CapturesActivations` is mixed into a worker, switches these outputs
on, and after each step copies the rows that somebody wants. Whatever goes wrong here fails the requests that capture
and nobody else.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.model_executor.models.interfaces import EagleModelMixin
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

from backends.llama_vllm.activations import CONFIG_KEY, FINAL_NORM_POINT, ActivationRequest, points, refusal
from backends.llama_vllm.positions import Piece, Run, Selection, blocks, pieces, wanted
from backends.llama_vllm.slab import DTYPES, SlabWriter

log = logging.getLogger(__name__)

#: Rows are gathered into blocks of this size at most.
BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Choice:
    """A choice that captures, while vLLM knows it."""

    points: tuple[int, ...]
    selection: Selection
    slab: SlabWriter
    narrowed: bool = False  # to a data type that lacks some numbers of the model's own

    @classmethod
    def of(cls, request: NewRequestData, own: torch.dtype) -> Choice | None:
        """What a request's parameters say, None if it captures nothing. own: the model's data type.

        Raises OSError if its slab is gone.
        """
        told = ActivationRequest.of_extra_args(request.sampling_params and request.sampling_params.extra_args)
        if told is None:
            return None
        path, asked = told
        narrowed = DTYPES[asked.layout.dtype] == torch.float16 != own
        return cls(asked.points, asked.selection, SlabWriter(path, asked.layout), narrowed)


class Capture:
    """The choices that capture in one worker, and the step that it is in."""

    def __init__(self, runner: Any, config: VllmConfig) -> None:
        """Switches the auxiliary outputs on: for good where the model is compiled, else in the steps that want any."""
        self._runner = runner
        self._hidden, self._dtype = config.model_config.get_hidden_size(), config.model_config.dtype
        self._writes = get_tensor_model_parallel_rank() == 0  # every rank has the whole residual stream
        compilation = config.compilation_config
        self._static = compilation.mode != CompilationMode.NONE or compilation.cudagraph_mode != CUDAGraphMode.NONE
        self._on: tuple[int, ...] = ()
        self._choices: dict[str, Choice] = {}
        self._wants: dict[str, list[Run]] = {}
        self._scheduled: Mapping[str, int] = {}
        self._starts: dict[str, int] = {}
        if self._static:
            model = config.model_config
            self._switch(points(config.additional_config[CONFIG_KEY], model.hf_text_config.num_hidden_layers))

    def before(self, step: SchedulerOutput) -> None:
        """Finds what is wanted of a step that is about to run."""
        for request_id in step.finished_req_ids:
            if choice := self._choices.pop(request_id, None):
                self._close(choice)
        if not self._writes:
            return
        for request in step.scheduled_new_reqs:
            self._register(request)
        self._wants = {}
        if self._choices:
            self._scheduled = step.num_scheduled_tokens
            self._starts = {request.req_id: request.num_computed_tokens for request in step.scheduled_new_reqs}
            cached = step.scheduled_cached_reqs
            self._starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            selections = {request_id: choice.selection for request_id, choice in self._choices.items()}
            self._wants = wanted(self._scheduled, self._starts, selections)
        if not self._static:
            self._switch({point for request_id in self._wants for point in self._choices[request_id].points})

    def after(self) -> None:
        """Keeps what is wanted of the step that has run. Its tensors stay as they are until the next step."""
        if not self._wants:
            return
        try:
            order, query_starts, tensors = self._outputs()
            found = pieces(self._wants, self._scheduled, self._starts, order, query_starts)
        except Exception as error:
            self._fail(self._wants, error)
            return
        groups = defaultdict(list)
        for piece in found:
            choice = self._choices[piece.choice]
            groups[choice.points, DTYPES[choice.slab.layout.dtype]].append(piece)
        for (wished, dtype), group in groups.items():
            try:
                self._keep([tensors[point] for point in wished], dtype, group)
            except Exception as error:
                self._fail({piece.choice for piece in group}, error)

    def _keep(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, group: Sequence[Piece]) -> None:
        """Stores pieces of choices that want the same [step, hidden] tensors in the same data type."""
        most = max(1, BLOCK_BYTES // (len(tensors) * self._hidden * dtype.itemsize))
        for block in blocks(group, most):
            rows = self._gather(tensors, dtype, block)
            self._publish(rows, [(self._choices[piece.choice], piece.run) for piece in block])

    def _fail(self, request_ids: Iterable[str], error: Exception) -> None:
        log.exception("activations could not be captured")
        for request_id in request_ids:
            mark_failed(self._choices[request_id], error)

    def _register(self, request: NewRequestData) -> None:
        # vLLM's second runner sees a request that was preempted as new again.
        if request.req_id in self._choices:
            return
        try:
            choice = Choice.of(request, self._dtype)
        except Exception as error:
            # Its owner has gone already, or will miss its rows at the end.
            log.warning("a slab could not be opened: %s", error)
            return
        if choice is not None:
            self._choices[request.req_id] = choice

    def _switch(self, wished: Iterable[int]) -> None:
        """Has the model hand out these points of its residual stream."""
        on = tuple(sorted({*wished} - {FINAL_NORM_POINT}))
        if on != self._on:
            self._runner.get_model().set_aux_hidden_state_layers(on)
            self._runner.use_aux_hidden_state_outputs = bool(on)
            self._on = on

    def _outputs(self) -> tuple[Sequence[str], Any, dict[int, torch.Tensor]]:
        """Of the step that has run: the batch's request ids, where each begins, and [rows, hidden] of every point."""
        state = self._runner.execute_model_state
        if hasattr(state, "input_batch"):  # vLLM's second model runner
            order, query_starts = state.input_batch.req_ids, state.input_batch.query_start_loc_np
        else:
            order, query_starts = self._runner.input_batch.req_ids, self._runner.query_start_loc.np
        tensors = dict(zip(self._on, state.aux_hidden_states or (), strict=True))
        return order, query_starts, tensors | {FINAL_NORM_POINT: state.hidden_states}

    def _gather(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, block: Sequence[Piece]) -> torch.Tensor:
        """The rows of these pieces in each [step, hidden] tensor, one after the other: [rows, tensors, hidden]."""
        first, count = block[0].source, sum(piece.length for piece in block)
        if all(after.source == piece.source + piece.length for piece, after in pairwise(block)):
            sources = [tensor[first : first + count] for tensor in tensors]
        else:
            rows = [row for piece in block for row in range(piece.source, piece.source + piece.length)]
            index = self._index(rows, tensors[0].device)
            sources = [tensor.index_select(0, index) for tensor in tensors]
        gathered = torch.empty((count, len(tensors), self._hidden), dtype=dtype, device=tensors[0].device)
        for place, source in enumerate(sources):
            gathered[:, place] = source
        return gathered

    def _index(self, rows: list[int], device: torch.device) -> torch.Tensor:
        return torch.tensor(rows, device=device)

    def _publish(self, rows: torch.Tensor, whose: Sequence[tuple[Choice, Run]]) -> None:
        """Has rows stored, which belong to these choices in order."""
        store(rows, whose)

    def _close(self, choice: Choice) -> None:
        """Lets go of a choice that has ended."""
        choice.slab.close()


def store(rows: torch.Tensor, whose: Sequence[tuple[Choice, Run]]) -> None:
    """Writes rows into the slabs that they belong to; one that can't be written is marked as failed."""
    at = 0
    for choice, run in whose:
        own = rows[at : at + run.length]
        try:
            if choice.narrowed and bool(own.isinf().any()):
                raise OverflowError("they hold numbers beyond 65504, the most of float16: ask for bfloat16 or float32")
            choice.slab.write(run, own)
        except Exception as error:
            log.exception("activations could not be stored")
            mark_failed(choice, error)
        at += run.length


def mark_failed(choice: Choice, error: Exception) -> None:
    """Has a choice fail, whatever else of it is stored."""
    try:
        choice.slab.fail(f"{type(error).__name__}: {error}".splitlines()[0])
    except OSError:
        log.exception("a slab could not be marked as failed")  # then its rows are missed at the end


def hand_out(
    self: Any, outputs: list[torch.Tensor], point: int, hidden: torch.Tensor, residual: torch.Tensor | None
) -> list[torch.Tensor]:
    """In place of EagleModelMixin's `_maybe_add_hidden_state`: the embedding is copied, since on a GPU the first
    block's second norm writes into it."""
    if point in self.aux_hidden_state_layers:
        outputs.append(hidden.clone() if residual is None else hidden + residual)
    return outputs


class CapturesActivations:
    """Mixed into a vLLM worker, in front of it."""

    model_runner: Any
    vllm_config: VllmConfig
    _capture: Capture | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """As vLLM's; what is switched on here is there when memory is measured and graphs are made."""
        EagleModelMixin._maybe_add_hidden_state = hand_out
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        if not refusal(self.vllm_config.parallel_config):
            self._capture = self._make_capture()

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """As vLLM's; None while the step's tensors wait for sample_tokens."""
        capture = self._capture
        if capture is None:
            return super().execute_model(scheduler_output)  # type: ignore[misc]
        capture.before(scheduler_output)
        output = super().execute_model(scheduler_output)  # type: ignore[misc]
        with torch.inference_mode():
            capture.after()
        return output

    def _make_capture(self) -> Capture:
        return Capture(self.model_runner, self.vllm_config)
