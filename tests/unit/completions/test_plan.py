"""What the model decides about a request: vocabulary, context, caps and max_tokens."""
from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest

from frontend.completions.plan import Plan, check_ids, make_plan
from frontend.completions.request import CompletionRequest, Sampling
from frontend.errors import ApiError, ContextLengthExceeded, FullVocabTooLarge, InvalidRequest
from frontend.inference import ModelCard, TokenizedPrompt

CARD = ModelCard(
    id="m", checkpoint="m", revision="1", dtype="float32", fingerprint="fp_0", gpu_shape="CPU", price_per_hour=0,
    created=0, warm="always", idle_minutes=30, warm_windows=[], max_requests=4, max_queue=8,
    max_model_len=100, vocab_size=1000, n_layers=1, hidden_size=8, bos_token=None,
    bos_token_id=None, eos_token_id=0, max_logprobs=5, full_vocab_max_prompt_tokens=20,
    full_vocab_max_completion_tokens=8, activation_layers="all", activation_max_mb=1)
MAX_TOTAL = 120


def tokens(*lengths: int) -> list[TokenizedPrompt]:
    return [TokenizedPrompt(tuple(range(length)), ()) for length in lengths]


def plan(request: CompletionRequest, *lengths: int) -> Plan:
    return make_plan(request, CARD, tokens(*lengths), MAX_TOTAL)


def refusal(kind: type[ApiError], request: CompletionRequest, *lengths: int) -> ApiError:
    with pytest.raises(kind) as caught:
        plan(request, *lengths)
    return caught.value


@pytest.mark.parametrize(("length", "applied"), [(1, 99), (60, 40), (99, 1)])
def test_left_out_max_tokens_takes_what_the_context_leaves(length: int, applied: int) -> None:
    assert plan(CompletionRequest("m", ("x",)), length).max_tokens == applied


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    error = refusal(ContextLengthExceeded, CompletionRequest("m", ("x",)), 100)
    assert error.param == "prompt"
    assert "100 tokens" in error.message


def test_the_context_error_names_the_three_numbers() -> None:
    error = refusal(ContextLengthExceeded, CompletionRequest("m", ("x",), 41), 60)
    assert error.param == "max_tokens"
    assert all(n in error.message for n in ("60", "41", "100"))
    assert plan(CompletionRequest("m", ("x",), 40), 60).max_tokens == 40


def test_a_prompt_without_tokens_is_refused_by_its_number() -> None:
    error = refusal(InvalidRequest, CompletionRequest("m", ("x", ""), 1), 1, 0)
    assert error.param == "prompt"
    assert "Prompt 1" in error.message


def test_min_tokens_must_fit_the_default_max_tokens_too() -> None:
    assert refusal(InvalidRequest, CompletionRequest("m", ("x",), None, Sampling(min_tokens=41)),
                   60).param == "min_tokens"


@pytest.mark.parametrize(("sampling", "echo", "field"), [
    (Sampling(prompt_logprobs=-1), False, "prompt_logprobs"), (Sampling(logprobs=-1), True, "logprobs")])
def test_the_whole_vocabulary_over_a_long_prompt_is_refused(sampling: Sampling, echo: bool, field: str) -> None:
    request = CompletionRequest("m", ("x",), 1, sampling, echo=echo)
    error = refusal(FullVocabTooLarge, request, 21)
    assert error.param == field
    assert "20" in error.message
    assert plan(request, 20).max_tokens == 1


def test_the_cap_of_the_whole_vocabulary_is_for_all_prompts_and_choices() -> None:
    sampling = Sampling(prompt_logprobs=-1)
    two = CompletionRequest("m", ("x", "y"), 1, sampling)
    assert "21 prompt tokens" in refusal(FullVocabTooLarge, two, 11, 10).message
    assert plan(two, 10, 10).prompt_entries == 20 * 1000
    both = CompletionRequest("m", ("x", "y"), 1, Sampling(n=2, prompt_logprobs=-1))
    assert "22 prompt tokens (n × 11)" in refusal(FullVocabTooLarge, both, 6, 5).message
    assert plan(both, 5, 5).prompt_entries == 20 * 1000
    echoed = CompletionRequest("m", ("x", "y"), 1, Sampling(n=2, logprobs=-1), echo=True)
    assert refusal(FullVocabTooLarge, echoed, 6, 5).param == "logprobs"


def test_the_whole_vocabulary_over_many_completion_tokens_is_refused() -> None:
    request = CompletionRequest("m", ("x",), 5, Sampling(n=2, logprobs=-1))
    assert "at most 4" in refusal(FullVocabTooLarge, request, 1).message
    refusal(FullVocabTooLarge, CompletionRequest("m", ("x",), None, Sampling(logprobs=-1)), 1)
    assert plan(CompletionRequest("m", ("x",), 4, Sampling(n=2, logprobs=-1)), 1).max_tokens == 4


@pytest.mark.parametrize(("request_", "field"), [
    (CompletionRequest("m", ((1, 2, 1000),)), "prompt"),
    (CompletionRequest("m", ("x",), 1, Sampling(stop_token_ids=(1000,))), "stop_token_ids"),
    (CompletionRequest("m", ("x",), 1, Sampling(allowed_token_ids=(5, 1000))), "allowed_token_ids"),
    (CompletionRequest("m", ("x",), 1, Sampling(logit_bias=((1000, -1.0),))), "logit_bias"),
    (CompletionRequest("m", ("x",), 1, Sampling(logprobs=6)), "logprobs"),
    (CompletionRequest("m", ("x",), 1, Sampling(prompt_logprobs=6)), "prompt_logprobs"),
])
def test_what_the_model_lacks_is_refused(request_: CompletionRequest, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ids(request_, CARD)
    assert caught.value.param == field
    if "logprobs" not in field:
        assert "1000" in caught.value.message


def test_a_token_outside_the_vocabulary_is_named_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match="999999999 at position 2"):
        check_ids(CompletionRequest("m", ((1, 2, 999999999),)), CARD)


def test_all_problems_are_reported() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ids(CompletionRequest("m", ((1000,), (1, 1000)), 1, Sampling(logprobs=6)), CARD)
    assert [problem.param for problem in caught.value.details] == ["prompt", "prompt", "logprobs"]


def test_every_sampling_field_is_sent_defaults_included() -> None:
    sent = json.loads(plan(CompletionRequest("m", ("x",), 4), 1).engine_sampling())
    assert set(sent) == {f.name for f in fields(Sampling)} | {"max_tokens"}
    assert sent["temperature"] == 1.0
    assert sent["top_k"] == 0
    assert sent["max_tokens"] == 4
    assert sent.items() >= {k: v for k, v in asdict(Sampling()).items() if isinstance(v, int | float)}.items()


@pytest.mark.parametrize(("sampling", "echo", "wanted"), [
    (Sampling(logprobs=3), True, 3), (Sampling(logprobs=3), False, None), (Sampling(logprobs=3, prompt_logprobs=4),
    True, 4), (Sampling(logprobs=-1, prompt_logprobs=2), True, -1), (Sampling(prompt_logprobs=0), False, 0)])
def test_echo_asks_for_the_prompts_log_probabilities(sampling: Sampling, echo: bool, wanted: int | None) -> None:
    assert plan(CompletionRequest("m", ("x",), 1, sampling, echo=echo), 5).prompt_logprobs == wanted
