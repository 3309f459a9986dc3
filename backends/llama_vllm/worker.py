"""The worker process's side: what vLLM's runner is taught there. Named to vLLM by `worker_cls`.

On the CPU: seeded requests survive chunked prefill, whole-vocabulary log probabilities come in vocabulary order
without sorting 128k columns per row, Activations are captured, and a worker that has nothing to do leaves its core
alone.
"""

from __future__ import annotations

import atexit
from typing import Any

import torch
from torch._dynamo.utils import dump_compile_times
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from backends.llama_vllm.capture import CapturesActivations
from backends.llama_vllm.executor import wait_patiently


class ExactSeeds(CPUModelRunner):
    """A request's random numbers are drawn only for tokens that it keeps.

    While a prompt is prefilled in chunks, vLLM samples after every chunk and throws the token away, then winds the
    request's generator back by an offset, which CPU generators refuse ("CPU Generator does not use offset") and which
    kills the engine. Here the generators of such rows sit out the step, so their state never moves.
    """

    _resting: dict[int, torch.Generator]

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> SamplerOutput:
        generators = self.input_batch.generators
        discarded = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0]
        self._resting = {row: generators.pop(row) for row in discarded.tolist() if row in generators}
        return super()._sample(logits, spec_decode_metadata)

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        kept = super()._bookkeeping_sync(*args, **kwargs)
        self.input_batch.generators.update(self._resting)
        return kept


class WholeVocabulary(CPUModelRunner):
    """Log probabilities of the whole vocabulary as one column per id, in order.

    vLLM asks for the "top 128k", a full sort, and names every column. Here a batch in which some request wants the
    whole vocabulary gets the named columns that the others want, and after them the vocabulary as it is:
    logprobs [rows, k+1+vocab], ids [rows, k+1]. A prompt gets the vocabulary alone: [rows, vocab], ids [rows, 1].
    """

    _for_prompt = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sampler.gather_logprobs = self._gather

    def _gather(self, logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        vocab_size = logprobs.shape[-1]
        if num_logprobs < vocab_size:
            return Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)
        wanted = () if self._for_prompt else self.input_batch.num_logprobs.values()
        named = Sampler.gather_logprobs(logprobs, max((k for k in wanted if k < vocab_size), default=0), token_ids)
        if self._for_prompt:
            return named._replace(logprobs=logprobs)
        return named._replace(logprobs=torch.cat((named.logprobs, logprobs), dim=1))

    def _get_prompt_logprobs_dict(self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> Any:
        for request_id, columns in self.num_prompt_logprobs.items():
            request = self.requests[request_id]
            if columns == self.input_batch.vocab_size and request.in_progress_prompt_logprobs_cpu is None:
                rows = len(request.prompt_token_ids) - 1
                request.in_progress_prompt_logprobs_cpu = LogprobsTensors(
                    torch.empty((rows, 1), dtype=torch.int32),
                    torch.empty((rows, columns), dtype=torch.float32),
                    torch.empty(rows, dtype=torch.int32),
                )
        self._for_prompt = True
        try:
            return super()._get_prompt_logprobs_dict(hidden_states, num_scheduled_tokens)
        finally:
            self._for_prompt = False


class LlamaCPURunner(ExactSeeds, WholeVocabulary):
    """vLLM's CPU runner with both."""


class LlamaCPUWorker(CapturesActivations, cpu_worker.CPUWorker):
    """vLLM's CPU worker around our runner."""

    def init_device(self) -> None:
        """As vLLM's, which makes its runner by this name of its module."""
        wait_patiently()
        cpu_worker.CPUModelRunner = LlamaCPURunner
        super().init_device()
        # Nobody reads this table, and drawing it up takes longer than vLLM waits before it kills the worker.
        atexit.unregister(dump_compile_times)
