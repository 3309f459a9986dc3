"""One choice as vLLM sees it: the request that goes to the engine and the state that collects what comes back.

vLLM's RequestState makes objects for its own API servers out of every token. This one keeps text pieces and numpy
rows until they are asked for. Every choice is a request of its own, also when n > 1: prompt log probabilities are then
computed once, and each choice can be sent as soon as it has something to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams, envs
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_ALLOWED_TOKEN_IDS, MAX_NUM_STOP_TOKEN_IDS

from backends.llama_vllm.completion import CompletionText
from backends.llama_vllm.logprobs import Rows, rows_of
from backends.llama_vllm.recording import Recording
from backends.llama_vllm.sampling import Sampling
from backends.text import TokenTable

#: Seeds are below this: what the API takes, and what the engine's signed 64 bits hold.
SEEDS = 2**63


@dataclass(frozen=True)
class Ending:
    """How a choice ended: vLLM's reason, and for a stop the stop string or the stop token's id (None: end-of-text)."""

    reason: FinishReason
    stop_reason: str | int | None


class LogprobRows:
    """Collects a choice's rows. `update_from_output` is what vLLM's OutputProcessor calls on a logprobs processor."""

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._k = sampling.logprobs
        self._prompt_k = sampling.prompt_logprobs
        self._vocab_size = vocab_size
        self.generated: list[Rows] = []
        self.prompt: Rows | None = None

    def update_from_output(self, output: EngineCoreOutput) -> None:
        """Takes the rows of one engine step."""
        if output.new_logprobs is not None and self._k is not None:
            ids, values, ranks, _ = output.new_logprobs
            self.generated.append(rows_of(ids, values, ranks, self._k, self._vocab_size))
        if output.new_prompt_logprobs_tensors is not None and self._prompt_k is not None:
            ids, values, ranks, *_ = output.new_prompt_logprobs_tensors
            self.prompt = rows_of(ids, values, ranks, self._prompt_k, self._vocab_size)


class ChoiceState(RequestState):
    """A choice in flight. `changed` is called, in the engine's event loop, when there is something to send."""

    def __init__(
        self,
        request: EngineCoreRequest,
        index: int,
        sampling: Sampling,
        table: TokenTable,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.completion = CompletionText(table, sampling)
        self.rows = LogprobRows(sampling, len(table.bytes))
        self.ending: Ending | None = None
        self._changed = changed
        self._failed = failed
        super().__init__(
            request_id=request.request_id,
            external_req_id=request.external_req_id,
            parent_req=None,
            request_index=index,
            lora_request=None,
            output_kind=RequestOutputKind.DELTA,
            prompt=None,
            prompt_token_ids=request.prompt_token_ids,
            prompt_embeds=None,
            logprobs_processor=self.rows,
            detokenizer=self.completion,
            max_tokens_param=sampling.max_tokens,
            arrival_time=request.arrival_time,
            queue=self,
            log_stats=True,
            stream_interval=1,
        )

    def make_request_output(
        self,
        new_token_ids: list[int],
        pooling_output: Any,
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Called once per engine step, after `completion` and `rows` have taken their part of it."""
        if finish_reason is not None:
            self.ending = Ending(finish_reason, stop_reason)
        self._changed()

    def put(self, error: Exception) -> None:
        """What the OutputProcessor calls when the engine has died. Nothing else is put, since no output is made."""
        self._failed(error)


def engine_request(engine: AsyncLLM, request_id: str, prompt_ids: list[int], params: SamplingParams) -> Any:
    """The engine's request for one choice. Raises vLLM's validation errors (ValueError), and those of the checks below.
    """
    request = engine.input_processor.process_inputs(
        request_id, tokens_input(prompt_ids), params, supported_tasks=("generate",), arrival_time=time.time()
    )
    check_choice(request.sampling_params)
    if engine.vllm_config.use_v2_model_runner:
        check_room(request.sampling_params)
    engine.input_processor.assign_request_id(request)
    return request


def check_choice(params: SamplingParams) -> None:
    """Raises ValueError where every allowed token may be forbidden: vLLM would choose token 0, allowed or not.

    min_tokens forbids the stop tokens, and a bad word its last token after the others. params: after vLLM's input
    processor.
    """
    if params.allowed_token_ids is None:
        return
    forbidden = {word[-1] for word in params.bad_words_token_ids or ()}
    if params.min_tokens:
        forbidden |= params.all_stop_token_ids
    if forbidden.issuperset(params.allowed_token_ids):
        raise ValueError("allowed_token_ids must hold a token that neither bad_words nor min_tokens can forbid")


def check_room(params: SamplingParams) -> None:
    """Raises ValueError for lists that vLLM's second model runner, the one for GPUs, has no room for.

    It finds that out in its worker, which ends the engine with all that it runs. params: after vLLM's input processor.
    """
    lists = (
        ("allowed_token_ids", len(params.allowed_token_ids or ()), MAX_NUM_ALLOWED_TOKEN_IDS),
        # The end-of-text token is one of these.
        ("stop_token_ids", len(params.all_stop_token_ids) if params.min_tokens else 0, MAX_NUM_STOP_TOKEN_IDS),
        ("bad_words", sum(map(len, params.bad_words_token_ids or ())), envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS),
    )
    for name, tokens, most in lists:
        if tokens > most:
            raise ValueError(f"{name} takes up to {most} tokens on this model's GPUs, and these are {tokens}")


def register(processor: OutputProcessor, state: ChoiceState) -> None:
    """Has the engine's outputs go to this state: what OutputProcessor.add_request does with a state of its own."""
    processor.request_states[state.request_id] = state
    processor.external_req_ids[state.external_req_id].append(state.request_id)


async def start(engine: AsyncLLM, request: EngineCoreRequest, state: ChoiceState) -> None:
    """Hands a request to the engine: what AsyncLLM.add_request does, with our state in place of vLLM's."""
    register(engine.output_processor, state)
    await engine.engine_core.add_request_async(request)


def vllm_params(sampling: Sampling, index: int, recording: Recording | None = None) -> SamplingParams:
    """Choice `index` of a request, every field given. Only the first choice computes the prompt's log probabilities.

    Its seed is the request's plus `index`; after the largest comes 0. A larger one would end the engine on a GPU.
    Positions that the prefix cache supplies do not run: who wants their activations may not read it.
    """
    return SamplingParams(
        n=1,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=None if sampling.seed is None else (sampling.seed + index) % SEEDS,
        # Stop strings are found by CompletionText.
        stop=None,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs if index == 0 else None,
        logit_bias=dict(sampling.logit_bias) or None,
        allowed_token_ids=None if sampling.allowed_token_ids is None else list(sampling.allowed_token_ids),
        bad_words=list(sampling.bad_words),
        detokenize=True,
        skip_special_tokens=sampling.skip_special_tokens,
        spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
        extra_args=recording.extra_args(index) if recording else None,
        skip_reading_prefix_cache=True if recording and recording.needs_whole_prompt else None,
    )
