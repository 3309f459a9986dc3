"""The fields of a completions request: each row of the contract's table, right, of the wrong type, out of bounds."""
from __future__ import annotations

import json
import time
from typing import Any, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params

from frontend.completions.request import CompletionRequest, Sampling
from frontend.errors import ApiError, BadJson, InvalidRequest, Problem
from frontend.schemas.checks import MAX_PROBLEMS
from frontend.schemas.completions import CompletionSchema, check_completion, load_completion

LIMIT = 32_000


def load(**fields: Any) -> CompletionRequest:
    """Load a request, valid but for `fields`; a field given as ... is left out."""
    whole = {"model": "m", "prompt": "x", **fields}
    return load_completion(json.dumps({k: v for k, v in whole.items() if v is not ...}).encode(), LIMIT)


def problems(**fields: Any) -> tuple[Problem, ...]:
    """The problems of a request that must be refused."""
    with pytest.raises(InvalidRequest) as refused:
        load(**fields)
    error = refused.value
    assert (error.status, error.type, error.code) == (400, "invalid_request_error", "invalid_request")
    assert error.details
    assert (error.message, error.param) == (error.details[0].message, error.details[0].param)
    orjson.dumps([vars(problem) for problem in error.details])
    return error.details


def value_of(request: CompletionRequest, field: str) -> Any:
    return getattr(request.sampling if hasattr(request.sampling, field) else request, field)


WHOLE = ("2", "", 2.0, 1.5, True, False, [], [1], {})
NUMBER = ("2", "", True, False, [], [1.0], {})
BOOLEAN = (0, 1, 1.0, "true", "yes", "", [], {})
STRING = (1, 1.0, True, [], ["x"], {})
IDS = (1, "1", True, {}, ["1"], [1.0], [True], [None], [[1]], [1, 2, 3.0])

# field: (default, good values with what they become, wrong types, out of bounds)
NUMBERS: dict[str, tuple[Any, dict[Any, Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "temperature": (1.0, {0: 0.0, 0.01: 0.01, 1: 1.0, 2: 2.0, 1.5: 1.5}, NUMBER,
                    (-0.1, -1, 2.1, 3, 0.009, 1e-300, 10**400)),
    "top_p": (1.0, {1: 1.0, 0.001: 0.001}, NUMBER, (0, 0.0, -0.0, 1.0001, -1, 2)),
    "top_k": (0, {0: 0, -1: -1, 1: 1, 128_256: 128_256}, WHOLE, (-2, -(10**30), 2**63)),
    "min_p": (0.0, {0: 0.0, 1: 1.0, 0.5: 0.5}, NUMBER, (-0.1, 1.1)),
    "presence_penalty": (0.0, {-2: -2.0, 2: 2.0}, NUMBER, (-2.01, 2.01)),
    "frequency_penalty": (0.0, {-2: -2.0, 2: 2.0}, NUMBER, (-2.01, 2.01)),
    "repetition_penalty": (1.0, {2: 2.0, 0.1: 0.1}, NUMBER, (0, -1, 2.01)),
    "seed": (None, {0: 0, 2**63 - 1: 2**63 - 1}, WHOLE, (-1, 2**63, 2**64)),
    "logprobs": (None, {0: 0, 100: 100, -1: -1}, WHOLE, (-2, 101)),
    "prompt_logprobs": (None, {0: 0, 100: 100, -1: -1}, WHOLE, (-2, 101)),
    "max_tokens": (None, {1: 1, LIMIT: LIMIT}, WHOLE, (0, -1, LIMIT + 1, 2**70)),
    "min_tokens": (0, {0: 0, 5: 5}, WHOLE, (-1, 2**63)),
}
BOOLEANS = {
    "ignore_eos": False, "include_stop_str_in_output": False, "skip_special_tokens": True,
    "spaces_between_special_tokens": True, "add_special_tokens": True, "echo": False, "stream": False,
    "return_token_ids": False, "return_tokens_as_token_ids": False,
}
#: What OpenAI's specification marks nullable, as its SDK has it, less what is no field here.
NULLABLE = {
    "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop",
    "stream", "stream_options", "temperature", "top_p",
}


def test_every_default_is_the_contracts() -> None:
    request = load()
    assert request == CompletionRequest("m", ("x",), None, Sampling())
    for field, (default, *_) in NUMBERS.items():
        assert value_of(request, field) == default
    for field, default in BOOLEANS.items():
        assert value_of(request, field) is default


@pytest.mark.parametrize("field", NUMBERS)
def test_numbers(field: str) -> None:
    _, good, wrong, beyond = NUMBERS[field]
    for sent, meant in good.items():
        got = value_of(load(**{field: sent}), field)
        assert got == meant
        assert type(got) is type(meant)
        assert str(got) == str(meant)  # tells −0.0 from 0.0
    for sent in (*wrong, *beyond):
        assert {problem.param for problem in problems(**{field: sent})} == {field}, sent
    for sent in beyond:
        (problem, *_) = problems(**{field: sent})
        assert any(character.isdigit() for character in problem.message), "the message states the bound"


@pytest.mark.parametrize("field", BOOLEANS)
def test_booleans(field: str) -> None:
    assert value_of(load(**{field: True}), field) is True
    assert value_of(load(**{field: False}), field) is False
    for sent in BOOLEAN:
        assert [problem.param for problem in problems(**{field: sent})] == [field]


@pytest.mark.parametrize("field", sorted(set(CompletionSchema().fields) - {"model", "prompt"}))
def test_null_is_left_out_where_openai_says_so_and_a_wrong_type_elsewhere(field: str) -> None:
    if field in NULLABLE:
        assert load(**{field: None}) == load()
    else:
        assert [problem.param for problem in problems(**{field: None})] == [field]


@pytest.mark.parametrize("field", ["model", "prompt"])
def test_null_for_a_required_field_is_not_told_to_be_left_out(field: str) -> None:
    assert problems(**{field: None}) == (Problem(f"{field} is required, and must not be null.", field),)
    assert problems(min_p=None) == (Problem("min_p must not be null; it can be left out.", "min_p"),)


def test_the_largest_integer_is_a_bound_only_for_what_is_beyond_it() -> None:
    def said(**fields: Any) -> str:
        return problems(**fields)[0].message

    assert said(max_tokens=0) == "max_tokens must be at least 1."
    assert said(seed=-1) == "seed must be at least 0."
    assert said(seed=2**63) == f"seed must be at least 0 and at most {2**63 - 1}."
    assert said(n=0) == "n must be at least 1 and at most 128."


def test_the_nullable_fields_are_those_of_the_sdk() -> None:
    hints = get_type_hints(completion_create_params.CompletionCreateParamsBase)
    hints |= get_type_hints(completion_create_params.CompletionCreateParamsNonStreaming)
    nullable = {name for name, hint in hints.items() if type(None) in getattr(hint, "__args__", ())}
    assert nullable - {"best_of", "suffix", "prompt"} == NULLABLE - ({"stream"} - nullable)


def test_minus_zero_is_zero() -> None:
    assert str(load(temperature=-0.0).sampling.temperature) == "0.0"


def test_n() -> None:
    assert load(n=1).sampling.n == 1
    assert load(n=128, max_tokens=10).sampling.n == 128
    assert load(n=1, temperature=0).sampling.temperature == 0
    for sent in (*WHOLE, 0, -1, 129):
        assert [problem.param for problem in problems(n=sent, max_tokens=10)] == ["n"]
    assert [problem.param for problem in problems(n=2, max_tokens=10, temperature=0)] == ["n"]


def test_model() -> None:
    assert load(model="llama-8b").model == "llama-8b"
    for sent in (*STRING, None, "", ...):
        assert [problem.param for problem in problems(model=sent)] == ["model"]


@pytest.mark.parametrize(("sent", "prompts"), [
    ("x", ("x",)), ("", ("",)), (["x", "y"], ("x", "y")), ([""], ("",)), ([1, 2], ((1, 2),)),
    ([0], ((0,),)), ([[1, 2], [3]], ((1, 2), (3,))), (["x"] * 1024, ("x",) * 1024),
    (list(range(5000)), (tuple(range(5000)),)),
], ids=str)
def test_prompt(sent: Any, prompts: tuple[Any, ...]) -> None:
    assert load(prompt=sent, max_tokens=1).prompts == prompts


@pytest.mark.parametrize(("sent", "said"), [
    (..., "required"), (None, "null"), (1, "whole number"), (True, "boolean"), ({}, "object"), ([], "empty"),
    ([[]], "prompt[0]"), ([[1], []], "prompt[1]"), ([1, "x"], "prompt[1]"), (["x", 1], "prompt[1]"),
    (["x", [1]], "prompt[1]"), ([[1], "x"], "prompt[1]"), ([[1], 2], "prompt[1]"), ([1, [2]], "prompt[1]"),
    ([1.0], "prompt[0]"), ([True], "prompt[0]"), ([1, True], "prompt[1]"), ([None], "prompt[0]"), ([{}], "prompt[0]"),
    ([[1, "x"]], "prompt[0][1]"), ([[True]], "prompt[0][0]"), ([[[1]]], "prompt[0][0]"), ([-1], "-1 at prompt[0]"),
    ([[1], [2, -3]], "-3 at prompt[1][1]"), ([1, -(10**400)], "prompt[1]"),
    (["x"] * 1025, "1024"), ([[1]] * 1025, "1024"),
], ids=lambda value: str(value)[:30])
def test_prompt_refused(sent: Any, said: str) -> None:
    (problem,) = problems(prompt=sent, max_tokens=1)
    assert problem.param == "prompt"
    assert said in problem.message


def test_stop() -> None:
    assert load(stop="a").sampling.stop == ("a",)
    assert load(stop=["a", "b", "c", "d"]).sampling.stop == ("a", "b", "c", "d")
    for sent in (1, True, {}, "", [], [""], ["a", ""], ["a"] * 5, [1], ["a", None], [["a"]]):
        assert [problem.param for problem in problems(stop=sent)] == ["stop"]


def test_bad_words() -> None:
    for blank in (" ", "\n", "\t \u3000"):
        (problem,) = problems(bad_words=["a", blank])
        assert (problem.param, "bad_words[1]" in problem.message) == ("bad_words", True)
    assert load(bad_words=[]).sampling.bad_words == ()
    assert load(bad_words=["a"] * 64).sampling.bad_words == ("a",) * 64
    for sent in (1, "a", {}, [""], ["a"] * 65, [1]):
        assert [problem.param for problem in problems(bad_words=sent)] == ["bad_words"]


def test_token_id_lists() -> None:
    assert load(stop_token_ids=[]).sampling.stop_token_ids == ()
    assert load(stop_token_ids=[0, 7]).sampling.stop_token_ids == (0, 7)
    assert load(allowed_token_ids=[0, 7]).sampling.allowed_token_ids == (0, 7)
    assert load().sampling.allowed_token_ids is None
    for field in ("stop_token_ids", "allowed_token_ids"):
        for sent in (*IDS, [-1], [1, -1]):
            assert [problem.param for problem in problems(**{field: sent})] == [field]
    assert [problem.param for problem in problems(allowed_token_ids=[])] == ["allowed_token_ids"]


def test_logit_bias() -> None:
    assert load(logit_bias={}).sampling.logit_bias == ()
    loaded = load(logit_bias={"0": 1, "128255": -100, "7": 100.0}).sampling.logit_bias
    assert loaded == ((0, 1.0), (128255, -100.0), (7, 100.0))
    assert len(load(logit_bias={str(i): 0 for i in range(1024)}).sampling.logit_bias) == 1024
    keys = ("01", "-1", "+1", " 1", "1 ", "1.0", "1e3", "", "x", "١", "²", "1_0", "0x1", "1\n", "9" * 20)
    values = ("1", True, None, [], {}, 100.1, -101, 10**400, 1e-40, -1e-38)
    sents = [*({key: 1} for key in keys), *({"1": value} for value in values), [], "x", 1,
             {str(i): 0 for i in range(1025)}]
    for sent in sents:
        assert [problem.param for problem in problems(logit_bias=sent)] == ["logit_bias"], sent


def test_user() -> None:
    assert load().user is None
    assert load(user="é" * 256).user == "é" * 256
    for sent in (*STRING, "x" * 257):
        assert [problem.param for problem in problems(user=sent)] == ["user"]


def test_stream_options() -> None:
    assert load(stream=True, stream_options={"include_usage": True}).include_usage is True
    assert load(stream=True, stream_options={"include_usage": False}).include_usage is False
    assert load(stream=True, stream_options={}).include_usage is False
    for sent in ({"include_usage": True}, {}):
        for stream in (..., False, None):
            assert [problem.param for problem in problems(stream=stream, stream_options=sent)] == ["stream_options"]
    for sent in (True, "x", [], 1):
        assert [problem.param for problem in problems(stream=True, stream_options=sent)] == ["stream_options"]
    for usage in (1, "true", None, {}):
        found = problems(stream=True, stream_options={"include_usage": usage})
        assert [problem.param for problem in found] == ["stream_options.include_usage"]
    (problem,) = problems(stream=True, stream_options={"include_usages": True})
    assert problem.param == "stream_options.include_usages"
    assert "did you mean include_usage?" in problem.message


def test_several_choices_must_state_max_tokens() -> None:
    for fields in ({"n": 2}, {"prompt": ["x", "y"]}, {"prompt": [[1], [2]]}, {"n": 2, "max_tokens": None}):
        assert [problem.param for problem in problems(**fields)] == ["max_tokens"]
    for fields in ({"prompt": ["x"]}, {"prompt": [1, 2, 3]}, {"n": 1}):
        assert load(**fields).max_tokens is None


def test_prompts_times_n_times_max_tokens_is_bounded() -> None:
    assert load(prompt=["x"] * 4, n=8, max_tokens=1000).max_tokens == 1000
    (problem,) = problems(prompt=["x"] * 4, n=8, max_tokens=1001)
    assert problem.param == "max_tokens"
    assert "32000" in problem.message


def test_min_tokens_is_at_most_max_tokens() -> None:
    assert load(min_tokens=3, max_tokens=3).sampling.min_tokens == 3
    (problem,) = problems(min_tokens=4, max_tokens=3)
    assert problem.param == "min_tokens"


@pytest.mark.parametrize(("name", "near"), [
    ("temprature", "temperature"), ("Temperature", "temperature"), ("maxTokens", "max_tokens"), ("promt", "prompt"),
    ("top-p", "top_p"), ("logprob", "logprobs"), ("stop_tokens_ids", "stop_token_ids"),
])
def test_a_misspelled_field_is_refused_with_a_suggestion(name: str, near: str) -> None:
    (problem,) = problems(**{name: 1})
    assert problem.param == name
    assert f"did you mean {near}?" in problem.message


@pytest.mark.parametrize("name", [
    "best_of", "suffix", "messages", "length_penalty", "use_beam_search", "truncate_prompt_tokens", "guided_json",
    "priority", "response_format", "max_completion_tokens", "_schema", "", "é", "🙂", "\x00", "model.x",
])
def test_what_other_servers_accept_and_ignore_is_unknown(name: str) -> None:
    (problem,) = problems(**{name: None})
    assert problem.param == name
    assert problem.message.startswith("Unknown field")


def test_all_problems_are_reported_unknown_fields_first() -> None:
    found = problems(temprature=1, model=3, prompt=[], top_p=7, n=2, temperature=0, stream_options={}, echo=1)
    assert [problem.param for problem in found] == [
        "temprature", "model", "prompt", "top_p", "echo", "n", "stream_options"]


def test_a_million_problems_make_an_answer_of_ordinary_size() -> None:
    for body in ({f"k{i}": 1 for i in range(1_000_000)},
                 {"model": "m", "prompt": "x", "stream": True, "stream_options": {f"k{i}": 1 for i in range(300_000)}},
                 {"x" * 1_000_000: 1}):
        start = time.perf_counter()
        with pytest.raises(InvalidRequest) as refused:
            check_completion(body, LIMIT)
        assert time.perf_counter() - start < 20
        assert len(refused.value.details) <= MAX_PROBLEMS + 3
        assert sum(len(problem.message) + len(problem.param or "") for problem in refused.value.details) < 50_000


_anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3), max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(CompletionSchema().fields)) | st.text(max_size=12), _anything))
def test_anything_is_loaded_as_it_is_or_refused(fields: dict[str, Any]) -> None:
    body = {"model": "m", "prompt": "x", **fields}
    try:
        request = load_completion(json.dumps(body).encode(), LIMIT)
    except BadJson:
        return
    except ApiError as refused:
        orjson.dumps([vars(refused.details[0])])
        return
    for field, sent in fields.items():
        if field in NUMBERS or field in BOOLEANS or field == "n":
            got, default = value_of(request, field), value_of(load(), field)
            assert got == (default if sent is None else sent)
            assert (type(sent) is bool) == (type(got) is bool and sent is not None) or sent is None


@pytest.mark.parametrize("sent", [1e-46, -1e-46, 5e-324])
@pytest.mark.parametrize("field", ["repetition_penalty", "top_p", "min_p", "presence_penalty"])
def test_a_number_that_the_engine_would_take_for_0_is_refused(field: str, sent: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(**{field: sent})
    assert caught.value.param == field


@given(st.sampled_from(sorted(NUMBERS)), st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_never_clamped(field: str, sent: float) -> None:
    try:
        request = load(**{field: sent})
    except ApiError:
        return
    assert value_of(request, field) == sent
