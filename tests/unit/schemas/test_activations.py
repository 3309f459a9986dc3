"""The field `activations`: every member right, of the wrong type, unknown or out of bounds."""
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.completions.request import ActivationRequest
from frontend.errors import BadJson, InvalidRequest, Problem
from frontend.schemas.completions import load_completion


def load(activations: Any) -> ActivationRequest | None:
    body = json.dumps({"model": "m", "prompt": "x", "activations": activations})
    return load_completion(body.encode(), 32_000).activations


def problems(activations: Any) -> tuple[Problem, ...]:
    with pytest.raises(InvalidRequest) as refused:
        load(activations)
    error = refused.value
    assert (error.status, error.type, error.code) == (400, "invalid_request_error", "invalid_request")
    return error.details


def test_left_out_means_none() -> None:
    assert load_completion(b'{"model": "m", "prompt": "x"}', 32_000).activations is None


@pytest.mark.parametrize(("sent", "meant"), [
    ({"layers": "all"}, ActivationRequest("all")),
    ({"layers": [0]}, ActivationRequest((0,))),
    ({"layers": [16, 8, "final_norm", "embedding"]}, ActivationRequest((16, 8, "final_norm", "embedding"))),
    ({"layers": [1], "positions": "all"}, ActivationRequest((1,))),
    ({"layers": [1], "positions": "prompt"}, ActivationRequest((1,), "prompt")),
    ({"layers": [1], "positions": "generated"}, ActivationRequest((1,), "generated")),
    ({"layers": [1], "positions": "last"}, ActivationRequest((1,), "last")),
    ({"layers": [1], "positions": [3, 0, -1]}, ActivationRequest((1,), (3, 0, -1))),
    ({"layers": [1], "dtype": "bfloat16"}, ActivationRequest((1,), "all", "bfloat16")),
    ({"layers": [1], "dtype": "float16"}, ActivationRequest((1,), "all", "float16")),
    ({"layers": [1], "dtype": "float32"}, ActivationRequest((1,), "all", "float32")),
], ids=str)
def test_right(sent: Any, meant: ActivationRequest) -> None:
    assert load(sent) == meant


@pytest.mark.parametrize("sent", [None, True, 1, "all", [], [8]], ids=str)
def test_it_is_an_object(sent: Any) -> None:
    assert [problem.param for problem in problems(sent)] == ["activations"]


def test_layers_are_required() -> None:
    (problem,) = problems({})
    assert problem == Problem("activations.layers is required.", "activations.layers")


@pytest.mark.parametrize(("sent", "said"), [
    (None, "null"), (True, "boolean"), (8, "whole number"), ("All", "'All'"), ("embedding", "a list"), ({}, "object"),
    ([], "empty"), ([1.0], "layers[0]"), ([1, "8"], "layers[1]"), ([True], "boolean"), ([None], "null"),
    ([[1]], "layers[0]"), ([-1], "from 0"), ([1, 2, 1], "layers[2] is layers[0]"), (["all"], "'all'"),
    (["embedding", "embedding"], "twice"), (["Embedding"], "'Embedding'"), (["norm"], "final_norm"),
    ([1, 1.0], "layers[1]"), ([0, False], "layers[1]"), ([-(10**400)], "negative"),
], ids=lambda value: str(value)[:30])
def test_layers_refused(sent: Any, said: str) -> None:
    (problem,) = problems({"layers": sent})
    assert problem.param == "activations.layers"
    assert said in problem.message


@pytest.mark.parametrize(("sent", "said"), [
    (None, "null"), (True, "boolean"), (0, "whole number"), (-1, "whole number"), ("first", "'first'"),
    ("Prompt", "'Prompt'"), ({}, "object"), ([], "empty"), ([1.5], "positions[0]"), ([1, "2"], "positions[1]"),
    (["last"], "a string"), ([True], "boolean"), ([3, 3], "twice"), ([-1, 0, -1], "positions[2] is positions[0]"),
], ids=lambda value: str(value)[:30])
def test_positions_refused(sent: Any, said: str) -> None:
    (problem,) = problems({"layers": [0], "positions": sent})
    assert problem.param == "activations.positions"
    assert said in problem.message


@pytest.mark.parametrize(("sent", "said"), [
    (None, "null"), (True, "boolean"), (16, "whole number"), ("bf16", "'bf16'"), ("BFLOAT16", "bfloat16"),
    ("float64", "float32"), ("", "''"), (["float16"], "a list"),
], ids=str)
def test_dtype_refused(sent: Any, said: str) -> None:
    (problem,) = problems({"layers": [0], "dtype": sent})
    assert problem.param == "activations.dtype"
    assert said in problem.message


@pytest.mark.parametrize(("name", "near"), [("layer", "layers"), ("position", "positions"), ("type", "dtype")])
def test_a_misspelled_member_is_refused_with_a_suggestion(name: str, near: str) -> None:
    (problem,) = problems({"layers": [0], name: [1]})
    assert problem.param == f"activations.{name}"
    assert f"did you mean {near}?" in problem.message


def test_all_problems_are_reported() -> None:
    found = problems({"layers": [-1], "positions": [], "dtype": "x", "extra": 1})
    assert [problem.param for problem in found] == [
        f"activations.{name}" for name in ("extra", "layers", "positions", "dtype")]


_anything: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["all", "prompt", "last", "embedding", "final_norm", "float16"]) | st.text(max_size=6))


@given(st.dictionaries(st.sampled_from(["layers", "positions", "dtype"]),
                       _anything | st.lists(_anything, max_size=4) | st.lists(st.integers(0, 9), max_size=4)))
def test_anything_is_loaded_as_it_is_or_refused(sent: dict[str, Any]) -> None:
    try:
        asked = load(sent)
    except BadJson:
        return
    except InvalidRequest as refused:
        json.dumps([vars(problem) for problem in refused.details]).encode()
        return
    assert asked is not None
    for name, value in sent.items():
        got = getattr(asked, name)
        assert (list(got) if isinstance(got, tuple) else got) == value
        assert [type(item) for item in got] == [type(item) for item in value]
