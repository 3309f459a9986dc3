"""The fast writers say what plain json.dumps of plain dicts would say."""
from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from frontend.completions.logprobs import check_numbers, likeliest
from frontend.completions.whole_vocabulary import WholeVocabularyWriter
from frontend.errors import InternalError
from frontend.inference import LogprobRows, Vocabulary

TEXTS = ('a"', "b\\", "é", "\ufffd", "\ufffd", "", "🙂", "\n")
WRITER = WholeVocabularyWriter(Vocabulary(tuple(t.encode() for t in TEXTS), TEXTS, frozenset()))
ROWS = npst.arrays(np.float32, len(TEXTS), elements=st.floats(-50, 0, width=32) | st.just(-np.inf))


def finite(value: float) -> float:
    return -9999.0 if np.isneginf(value) else float(value)


@given(ROWS, st.integers(0, len(TEXTS) - 1), st.booleans())
def test_prompt_logprobs_are_the_map_of_all_ids(row: np.ndarray, token: int, as_ids: bool) -> None:
    entry = json.loads(WRITER.prompt_logprobs(row, as_ids, token, 99))
    assert list(entry) == [str(i) for i in range(len(TEXTS))]
    order = np.argsort(-row, kind="stable").tolist()
    for i, text in enumerate(TEXTS):
        member = entry[str(i)]
        assert np.float32(member["logprob"]) == np.float32(finite(row[i]))
        assert member["rank"] == (99 if i == token else order.index(i) + 1)
        assert member["decoded_token"] == (f"token_id:{i}" if as_ids else text)


@given(ROWS, st.integers(0, len(TEXTS) - 1))
def test_top_logprobs_give_a_shared_text_to_the_likeliest(row: np.ndarray, token: int) -> None:
    top = json.loads(WRITER.top_logprobs(row, False, token, "joined"))
    assert set(top) == {*TEXTS, "joined"}
    assert np.float32(top["\ufffd"]) == np.float32(max(finite(row[3]), finite(row[4])))
    assert np.float32(top["joined"]) == np.float32(finite(row[token]))
    by_id = json.loads(WRITER.top_logprobs(row, True, token, "ignored"))
    assert [np.float32(v) for v in by_id.values()] == [np.float32(finite(v)) for v in row]


def test_a_token_that_completes_a_character_shares_its_key_with_the_id_of_that_text() -> None:
    row = np.full(len(TEXTS), -9, np.float32)
    row[4] = -0.5
    assert json.loads(WRITER.top_logprobs(row, False, 4, "é"))["é"] == -0.5


def test_a_number_that_is_none_is_an_error_and_never_json() -> None:
    with pytest.raises(InternalError):
        check_numbers(LogprobRows(None, np.array([[0, np.nan]], np.float32), np.array([1], np.int32)))


@given(ROWS, st.integers(0, len(TEXTS)))
def test_the_likeliest_are_the_largest_in_order(row: np.ndarray, k: int) -> None:
    ids, values = likeliest(LogprobRows(None, row[None], np.array([1], np.int32)), 0, k)
    assert values == sorted(row.tolist(), reverse=True)[:k]
    assert len(set(ids)) == k
