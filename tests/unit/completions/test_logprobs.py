"""Log probabilities as JSON. No field of ours brings a minus infinity, but a model can: JSON has no such number."""
from __future__ import annotations

import json
import math

import numpy as np
import pytest

from frontend.completions.logprobs import LegacyLogprobs, PlacedToken, TokenNames, finite, render_prompt_logprobs
from frontend.inference import LogprobRows, Vocabulary

NAMES = TokenNames(Vocabulary((b"a", b"b", b"c"), ("a", "b", "c"), frozenset()), as_ids=False)
NONE = -math.inf
#: The same position both ways: token 1 stands there and has no probability, and neither has token 2.
NAMED = LogprobRows(np.array([[1, 0, 2]], np.int32), np.array([[NONE, -0.5, NONE]], np.float32),
                    np.array([2], np.int32))
WHOLE = LogprobRows(None, np.array([[-0.5, NONE, NONE]], np.float32), np.array([2], np.int32))


def not_json(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize(("value", "said"), [(NONE, -9999.0), (-9999.5, -9999.5), (-0.0, 0.0), (-1e-30, -1e-30)])
def test_only_minus_infinity_is_replaced(value: float, said: float) -> None:
    assert finite(value) == said


@pytest.mark.parametrize(("rows", "k"), [(NAMED, 2), (WHOLE, 2), (WHOLE, -1)], ids=["named", "cut", "whole"])
def test_a_token_of_no_probability_has_minus_9999(rows: LogprobRows, k: int) -> None:
    logprobs = LegacyLogprobs(NAMES, k)
    logprobs.add(PlacedToken(1, "b", 0, 1, rows, 0), 0)
    said = json.loads(b"".join(logprobs.render()), parse_constant=not_json)
    assert said["token_logprobs"] == [-9999.0]
    (top,) = said["top_logprobs"]
    assert {key: top[key] for key in ("a", "b")} == {"a": -0.5, "b": -9999.0}
    assert set(top.values()) == {-0.5, -9999.0}


@pytest.mark.parametrize(("rows", "k"), [(NAMED, 2), (WHOLE, 2), (WHOLE, -1)], ids=["named", "cut", "whole"])
def test_so_has_one_of_a_prompt(rows: LogprobRows, k: int) -> None:
    nothing, entry = json.loads(b"".join(render_prompt_logprobs([rows], (0, 1), k, NAMES)), parse_constant=not_json)
    assert nothing is None
    assert entry["0"] == {"logprob": -0.5, "rank": 1, "decoded_token": "a"}
    assert entry["1"] == {"logprob": -9999.0, "rank": 2, "decoded_token": "b"}
    assert {each["logprob"] for each in entry.values()} == {-0.5, -9999.0}


def test_without_alternatives_only_the_token_itself_is_there() -> None:
    (entry,) = json.loads(b"".join(render_prompt_logprobs([NAMED], (0, 1), 0, NAMES)))[1:]
    assert entry == {"1": {"logprob": -9999.0, "rank": 2, "decoded_token": "b"}}
