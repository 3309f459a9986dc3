"""Whatever shape the engine's numbers come in, a choice gets the columns that it asked for."""

from __future__ import annotations

import numpy as np

from backends.llama_vllm.completion import News
from backends.llama_vllm.logprobs import WHOLE_VOCABULARY, Rows, rows_of
from backends.llama_vllm.outputs import LARGEST_BYTES, choice_messages, prompt_messages

VOCAB = 6
WHOLE = np.array([[-3, -1, -2, -6, -5, -4]], np.float32)
NAMED_IDS = np.array([[4, 1, 2, 0]], np.int32)  # the token that is there, then the likeliest
NAMED = np.take_along_axis(WHOLE, NAMED_IDS.astype(np.int64), axis=1)
RANKS = np.array([5], np.int64)


def test_surplus_columns_are_cut() -> None:
    rows = rows_of(NAMED_IDS, NAMED, RANKS, 1, VOCAB)
    assert rows.ids is not None
    assert rows.ids.tolist() == [[4, 1]]
    assert rows.values.tolist() == [[-5, -1]]
    assert rows.ranks.tolist() == [5]


def test_without_alternatives_only_the_token_is_left() -> None:
    rows = rows_of(NAMED_IDS, NAMED, RANKS, 0, VOCAB)
    assert rows.values.shape == (1, 1)


def test_the_whole_vocabulary_is_found_behind_the_named_columns() -> None:
    rows = rows_of(NAMED_IDS, np.concatenate((NAMED, WHOLE), axis=1), RANKS, WHOLE_VOCABULARY, VOCAB)
    assert rows.ids is None
    assert np.array_equal(rows.values, WHOLE)


def test_the_whole_vocabulary_of_a_prompt_stands_alone() -> None:
    rows = rows_of(NAMED_IDS[:, :1], WHOLE, RANKS, WHOLE_VOCABULARY, VOCAB)
    assert np.array_equal(rows.values, WHOLE)


def test_a_sorted_vocabulary_is_put_back_into_order() -> None:
    order = np.argsort(-WHOLE, axis=1)
    ids = np.concatenate(([[4]], order), axis=1)
    rows = rows_of(ids, np.take_along_axis(WHOLE, ids, axis=1), RANKS, WHOLE_VOCABULARY, VOCAB)
    assert np.array_equal(rows.values, WHOLE)


def rows(count: int, columns: int, named: bool = False) -> Rows:
    ids = np.zeros((count, columns), np.int32) if named else None
    return Rows(
        ids, np.arange(count * columns, dtype=np.float32).reshape(count, columns), np.arange(count, dtype=np.int32)
    )


def test_a_long_prompt_is_split_by_rows_and_joins_again() -> None:
    prompt = rows(511, 128_256)
    messages = list(prompt_messages(prompt))
    assert max(message["prompt_logprobs"].nbytes for message in messages) <= LARGEST_BYTES
    assert np.array_equal(np.concatenate([message["prompt_logprobs"] for message in messages]), prompt.values)
    assert np.array_equal(np.concatenate([message["prompt_logprob_ranks"] for message in messages]), prompt.ranks)


def test_rows_of_a_choice_that_are_too_large_go_ahead_of_its_text() -> None:
    parts = [rows(1, 128_256) for _ in range(70)]
    messages = list(choice_messages(3, News("text", list(range(70))), parts, "length", None))
    assert [len(message["logprobs"]) for message in messages] == [32, 32, 6]
    assert [sorted(message) for message in messages[:-1]] == [["index", "logprob_ranks", "logprobs"]] * 2
    assert messages[-1]["text"].tolist() == [b"text"]
    assert messages[-1]["stop_reason"].tolist() == [b"null"]
    assert all(message["index"].tolist() == [3] for message in messages)


def test_nothing_to_say_is_no_message() -> None:
    assert list(choice_messages(0, News(), [], None, None)) == []


def test_a_stop_reason_is_json() -> None:
    reasons = [next(choice_messages(0, News(), [], "stop", reason))["stop_reason"][0] for reason in ('"', 7, None)]
    assert reasons == [b'"\\""', b"7", b"null"]
