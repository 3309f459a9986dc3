"""However a scheduler cuts, repeats and overruns the positions of a choice, its slab ends up holding the right ones."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.llama_vllm.positions import (
    Kind,
    Piece,
    PositionNotRun,
    Run,
    Selection,
    blocks,
    pieces,
    wanted,
)


@st.composite
def choices(draw: st.DrawFn) -> tuple[Selection, int, list[tuple[int, int]]]:
    """A selection, how many tokens the choice generated, and the steps that ran it: (first position, how many)."""
    kind: Kind = draw(st.sampled_from(["all", "prompt", "generated", "last", "list"]))
    prompt, max_tokens = draw(st.integers(1, 40)), draw(st.integers(1, 30))
    end = prompt + max_tokens - 1
    positions: tuple[int, ...] = ()
    if kind == "list":
        if end == 0:
            kind = "all"
        else:
            positions = tuple(draw(st.lists(st.integers(0, end - 1), min_size=1, max_size=8, unique=True)))
    generated = draw(st.integers(1, max_tokens))
    latest = draw(st.integers(1, 9))
    ends = prompt + generated - 1 + draw(st.integers(0, latest - 1))  # the engine may run past the end
    random = Random(draw(st.integers(0, 2**32)))
    steps: list[tuple[int, int]] = []
    at, known = 0, prompt  # the next position, and how many have a token to feed
    while at < ends:
        steps.append((at, random.randint(1, known - at)))
        at = sum(steps[-1])
        known = min(max(known, at + 1), ends) if at == known else known
        if random.random() < 0.1:
            at = 0  # preempted: everything runs again
    return Selection(kind, prompt, max_tokens, positions, latest=latest), generated, steps


@given(choices())
def test_every_row_of_an_answer_holds_its_position(case: tuple[Selection, int, list[tuple[int, int]]]) -> None:
    selection, generated, steps = case
    rows: dict[int, int] = {}
    for start, count in steps:
        for run in selection.runs(start, count):
            assert start <= run.position
            assert run.position + run.length <= start + count
            assert run.row >= 0
            assert run.row + run.length <= selection.rows
            rows.update({run.row + i: run.position + i for i in range(run.length)})
    ran = selection.prompt + generated - 1
    expected = {
        "all": range(ran),
        "prompt": range(selection.prompt),
        "generated": range(selection.prompt, ran),
        "last": range(ran - 1, ran),
        "list": selection.positions,
    }[selection.kind]
    if any(position >= ran for position in expected):
        with pytest.raises(PositionNotRun):
            selection.answer(generated)
        return
    answer = [(run.position + i, run.row + i) for run in selection.answer(generated) for i in range(run.length)]
    assert [position for position, _ in answer] == list(expected)
    assert all(rows[row] == position for position, row in answer)
    assert len(answer) <= selection.most


def test_a_position_that_did_not_run_is_named() -> None:
    with pytest.raises(PositionNotRun, match="position 14 was asked for, but the completion ended at position 11"):
        Selection("list", 10, 8, (2, 14)).answer(3)


def test_a_row_that_was_overwritten_is_not_the_answers() -> None:
    selection = Selection("last", 4, 100, latest=8)
    rows = {run.row: run.position for position in range(50) for run in selection.runs(position, 1)}
    (answer,) = selection.answer(20)
    assert (answer.position, rows[answer.row]) == (22, 46)


def test_lists_are_read_and_written_in_runs() -> None:
    selection = Selection("list", 100, 1, (7, 8, 9, 3, 20, 21))
    assert list(selection.runs(0, 100)) == [Run(3, 3, 1), Run(7, 0, 3), Run(20, 4, 2)]
    assert list(selection.runs(8, 12)) == [Run(8, 1, 2)]
    assert selection.answer(1) == [Run(7, 0, 3), Run(3, 3, 1), Run(20, 4, 2)]


def test_rows_are_found_by_where_the_batch_has_each_choice() -> None:
    selections = {"a": Selection("all", 5, 4), "b": Selection("list", 6, 2, (5, 1)), "c": Selection("prompt", 1, 9)}
    scheduled, starts = {"plain": 3, "a": 2, "b": 6, "c": 1}, {"plain": 9, "a": 3, "b": 0, "c": 4}
    wants = wanted(scheduled, starts, selections)
    assert wants == {"a": [Run(3, 3, 2)], "b": [Run(1, 1, 1), Run(5, 0, 1)]}
    order, query_starts = ["b", "plain", "c", "a"], [0, 6, 9, 10, 12]
    assert pieces(wants, scheduled, starts, order, query_starts) == [
        Piece("a", 10, Run(3, 3, 2)),
        Piece("b", 1, Run(1, 1, 1)),
        Piece("b", 5, Run(5, 0, 1)),
    ]


@pytest.mark.parametrize(("order", "query_starts"), [(["b"], [0, 2]), (["b", "a"], [0, 2, 5]), (["a"], [0, 1])])
def test_a_batch_that_is_not_what_was_scheduled_is_refused(order: list[str], query_starts: list[int]) -> None:
    with pytest.raises(ValueError, match="batch"):
        pieces({"a": [Run(0, 0, 2)]}, {"a": 2, "b": 2}, {"a": 0, "b": 0}, order, query_starts)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 20)), max_size=9), st.integers(1, 7))
def test_blocks_hold_every_row_once_and_no_more_than_they_may(runs: list[tuple[int, int]], most: int) -> None:
    whole = [Piece("a", 10 * place, Run(place, row, count)) for place, (row, count) in enumerate(runs)]
    cut = list(blocks(whole, most))
    assert all(sum(piece.length for piece in block) == most for block in cut[:-1])
    assert all(0 < sum(piece.length for piece in block) <= most for block in cut[-1:])

    def rows(all_pieces: list[Piece]) -> list[tuple[int, int, int]]:
        return [(p.source + i, p.run.position + i, p.run.row + i) for p in all_pieces for i in range(p.length)]

    assert rows([piece for block in cut for piece in block]) == rows(whole)
