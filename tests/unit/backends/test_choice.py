"""What the engine is told of a choice: each field as it was asked, and nothing that would end the engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from backends.llama_vllm.activations import ActivationRequest
from backends.llama_vllm.choice import check_choice, check_room, engine_request, vllm_params
from backends.llama_vllm.positions import Kind, Selection
from backends.llama_vllm.recording import Recording
from backends.llama_vllm.sampling import Sampling
from backends.llama_vllm.slab import Layout
from backends.llama_vllm.slab_pool import SlabPool

#: Of every field a value that no other field has, and that is not its default; and what vLLM is to be told, where that
#: differs. Stop strings are found outside of the engine, and each choice is a request of its own.
FIELDS: dict[str, Any] = {
    "max_tokens": 11, "temperature": 0.31, "top_p": 0.32, "top_k": 12, "min_p": 0.33, "presence_penalty": 0.34,
    "frequency_penalty": 0.35, "repetition_penalty": 1.36, "n": 2, "stop": ("x",), "stop_token_ids": (13, 14),
    "seed": 15, "logprobs": 16, "prompt_logprobs": 17, "logit_bias": ((18, 0.37), (19, -0.38)),
    "allowed_token_ids": (20, 21), "bad_words": ("y", "z"), "min_tokens": 6, "ignore_eos": True,
    "include_stop_str_in_output": True, "skip_special_tokens": False, "spaces_between_special_tokens": False,
}  # fmt: skip
TOLD: dict[str, Any] = {
    "n": 1, "stop": [], "stop_token_ids": [13, 14], "logit_bias": {18: 0.37, 19: -0.38},
    "allowed_token_ids": [20, 21], "bad_words": ["y", "z"],
}  # fmt: skip


def test_every_field_reaches_the_engine_as_it_was_asked() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Sampling)}
    assert FIELDS.keys() == defaults.keys()
    assert not [name for name, value in FIELDS.items() if value == defaults[name]]
    params = vllm_params(Sampling(**FIELDS), 0)
    assert {name: getattr(params, name) for name in FIELDS} == FIELDS | TOLD
    assert (params.output_kind, params.detokenize, params.extra_args) == (RequestOutputKind.DELTA, True, None)


def test_what_is_left_out_changes_nothing() -> None:
    params, plain = vllm_params(Sampling(max_tokens=5), 0), SamplingParams(max_tokens=5)
    assert {name: getattr(params, name) for name in FIELDS} == {name: getattr(plain, name) for name in FIELDS}


@pytest.mark.parametrize(("asked", "told"), [(-1, 0), (0, 0), (1, 1)])
def test_a_top_k_of_minus_one_is_off(asked: int, told: int) -> None:
    assert vllm_params(Sampling(max_tokens=1, top_k=asked), 0).top_k == told


def test_seeds_differ_per_choice_and_only_the_first_scores_the_prompt() -> None:
    params = [vllm_params(Sampling(max_tokens=1, n=3, seed=7, prompt_logprobs=-1), index) for index in range(3)]
    assert [each.seed for each in params] == [7, 8, 9]
    assert [each.prompt_logprobs for each in params] == [-1, None, None]
    assert vllm_params(Sampling(max_tokens=1, n=3), 2).seed is None


def test_the_seeds_after_the_largest_are_seeds_too() -> None:
    """As vLLM keeps them on a GPU: a larger one ended the engine."""
    told = [vllm_params(Sampling(max_tokens=1, n=3, seed=2**63 - 2), index).seed for index in range(3)]
    kept = np.zeros(3, np.int64)
    for place, seed in enumerate(told):
        kept[place] = seed
    assert kept.tolist() == [2**63 - 2, 2**63 - 1, 0]


@pytest.mark.parametrize(("fits", "exceeds"), [
    ({"allowed_token_ids": [1] * 1024}, {"allowed_token_ids": [1] * 1025}),
    ({"stop_token_ids": [*range(128)], "min_tokens": 1}, {"stop_token_ids": [*range(129)], "min_tokens": 1}),
    ({"stop_token_ids": [*range(129)]}, None),
])  # fmt: skip
def test_what_a_gpu_has_no_room_for_is_refused_and_does_not_end_the_engine(
    fits: dict[str, Any], exceeds: dict[str, Any] | None
) -> None:
    check_room(SamplingParams(**fits))
    if exceeds is not None:
        with pytest.raises(ValueError, match=f"{next(iter(exceeds))} takes up to"):
            check_room(SamplingParams(**exceeds))


@pytest.mark.parametrize(("fields", "bad_words"), [
    ({"min_tokens": 1, "stop_token_ids": [2, 3]}, []),
    ({}, [[2], [3]]),
    ({}, [[5, 2], [2, 3]]),
    ({"min_tokens": 1, "stop_token_ids": [2]}, [[3]]),
])  # fmt: skip
def test_allowed_tokens_that_may_all_be_forbidden_are_refused(
    fields: dict[str, Any], bad_words: list[list[int]]
) -> None:
    """vLLM chose token 0."""

    def params(*allowed: int) -> SamplingParams:
        made = SamplingParams(allowed_token_ids=[*allowed], **fields)
        made._bad_words_token_ids = bad_words
        return made

    for allowed in ((2,), (3, 2)):
        with pytest.raises(ValueError, match="allowed_token_ids must hold a token that neither bad_words nor"):
            check_choice(params(*allowed))
    check_choice(params(3, 2, 4))


def test_only_an_engine_with_the_runner_for_gpus_has_these_bounds() -> None:
    def engine(second: bool) -> Any:
        processor = SimpleNamespace(
            process_inputs=lambda request_id, prompt, params, **_: SimpleNamespace(sampling_params=params),
            assign_request_id=lambda request: None,
        )
        return SimpleNamespace(input_processor=processor, vllm_config=SimpleNamespace(use_v2_model_runner=second))

    params = SamplingParams(allowed_token_ids=[1] * 1025)
    assert engine_request(engine(False), "1", [1], params).sampling_params is params
    with pytest.raises(ValueError, match="allowed_token_ids takes up to 1024 tokens on this model's GPUs"):
        engine_request(engine(True), "1", [1], params)


def test_the_tokens_of_all_bad_words_together_have_a_bound_on_a_gpu() -> None:
    params = SamplingParams(bad_words=["x"])
    params._bad_words_token_ids = [[1] * 512, [2] * 512]
    check_room(params)
    params._bad_words_token_ids.append([3])
    with pytest.raises(ValueError, match="bad_words takes up to 1024 tokens"):
        check_room(params)


def test_who_wants_positions_that_a_cache_may_hide_does_not_read_it(tmp_path: Path) -> None:
    def reads_cache(selection: Selection) -> bool:
        wanted = ActivationRequest((0,), selection, Layout(selection.rows, 1, 4, "float32"))
        params = vllm_params(Sampling(max_tokens=5), 0, Recording(wanted, 1, tmp_path, "1", SlabPool(10**6)))
        return params.skip_reading_prefix_cache is not True

    kinds: list[Kind] = ["all", "prompt", "generated", "last"]
    assert [reads_cache(Selection(kind, 10, 5)) for kind in kinds] == [False, False, True, True]
    assert [reads_cache(Selection("list", 10, 5, (12, position))) for position in (8, 9, 10)] == [False, True, True]
