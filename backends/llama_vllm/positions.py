"""Which positions of a choice are kept, and in which row of its slab: the row arithmetic of Activations.

A position runs when its token is fed to the model: positions 0 … prompt + generated - 2, because the last token that
was sampled is fed to nobody. The scheduler runs them in any pieces and, after a preemption, again; so everything here
is keyed by absolute position, and a position that runs twice is written twice to the same row.

No tensors and no vLLM: the worker on a CPU, the worker on a GPU and the reader of the slab share this.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

Kind = Literal["all", "prompt", "generated", "last", "list"]


class Run(NamedTuple):
    """Consecutive positions that go to consecutive rows: the first position, the first row and how many."""

    position: int
    row: int
    length: int

    def part(self, start: int, length: int) -> Run:
        """Positions start … start+length-1 of it."""
        return Run(self.position + start, self.row + start, length)


class PositionNotRun(Exception):
    """The completion ended before a position that was asked for; the message says which."""


@dataclass(frozen=True)
class Selection:
    """The positions that one choice keeps.

    prompt: its prompt's tokens. max_tokens: the most that it may generate. positions: for "list", the absolute
    positions in the order asked, distinct, each below prompt + max_tokens - 1. latest: for "last", how many of the
    latest positions are kept, since the engine may run past the end before anybody knows that it was the end.
    """

    kind: Kind
    prompt: int
    max_tokens: int
    positions: tuple[int, ...] = ()
    latest: int = 1
    _in_order: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sorts the positions of a list for searching: (position, row)."""
        object.__setattr__(self, "_in_order", tuple(sorted((p, row) for row, p in enumerate(self.positions))))

    @property
    def rows(self) -> int:
        """Rows of the slab."""
        if self.kind == "list":
            return len(self.positions)
        if self.kind == "last":
            return min(self.max_tokens, self.latest)
        return self._stop - self._start

    @property
    def most(self) -> int:
        """The most positions that an answer may have."""
        return 1 if self.kind == "last" else self.rows

    @property
    def first(self) -> int:
        """The first position that may be wanted."""
        return self._in_order[0][0] if self.kind == "list" else self._start

    @property
    def _start(self) -> int:
        return {"all": 0, "prompt": 0, "generated": self.prompt, "last": self.prompt - 1}.get(self.kind, 0)

    @property
    def _stop(self) -> int:
        return self.prompt if self.kind == "prompt" else self.prompt + self.max_tokens - 1

    def runs(self, start: int, count: int) -> Iterator[Run]:
        """Where positions start … start+count-1, which run in one step, go. What nobody wants is left out."""
        if self.kind == "list":
            yield from self._listed(start, start + count)
            return
        start, stop = max(start, self._start), min(start + count, self._stop)
        if self.kind != "last":
            if start < stop:
                yield Run(start, start - self._start, stop - start)
            return
        size = self.rows
        start = max(start, stop - size)
        while start < stop:
            row = (start - self._start) % size
            length = min(stop - start, size - row)
            yield Run(start, row, length)
            start += length

    def _listed(self, start: int, stop: int) -> Iterator[Run]:
        first, end = (bisect_left(self._in_order, (position, 0)) for position in (start, stop))
        return _joined(self._in_order[first:end])

    def answer(self, generated: int) -> list[Run]:
        """What a choice that generated so many tokens answers: every position in the order asked.

        Raises PositionNotRun when a listed position did not run.
        """
        ran = self.prompt + generated - 1
        if self.kind == "list":
            for position in self.positions:
                if position >= ran:
                    raise PositionNotRun(
                        f"position {position} was asked for, but the completion ended at position {ran - 1}; "
                        "ask for prompt positions, or set ignore_eos or min_tokens"
                    )
            return list(_joined(zip(self.positions, range(self.rows), strict=True)))
        first = ran - 1 if self.kind == "last" else self._start
        return list(self.runs(first, min(ran, self._stop) - first))


def _joined(pairs: Iterable[tuple[int, int]]) -> Iterator[Run]:
    """Pairs of a position and its row as runs."""
    run: Run | None = None
    for position, row in pairs:
        if run is not None and (position, row) == (run.position + run.length, run.row + run.length):
            run = run._replace(length=run.length + 1)
        else:
            if run is not None:
                yield run
            run = Run(position, row, 1)
    if run is not None:
        yield run


class Piece(NamedTuple):
    """Consecutive rows of a step's tensors that go to consecutive rows of one choice's slab."""

    choice: str
    source: int
    run: Run

    @property
    def length(self) -> int:
        """How many rows."""
        return self.run.length

    def part(self, start: int, length: int) -> Piece:
        """Rows start … start+length-1 of it."""
        return Piece(self.choice, self.source + start, self.run.part(start, length))


Cut = TypeVar("Cut", Run, Piece)


def blocks(things: Iterable[Cut], most: int) -> Iterator[list[Cut]]:
    """Runs or pieces in groups of so many rows at most, cut where they have to be."""
    block: list[Cut] = []
    room = most
    for thing in things:
        done = 0
        while done < thing.length:
            part = thing.part(done, min(room, thing.length - done))
            block.append(part)
            done, room = done + part.length, room - part.length
            if not room:
                yield block
                block, room = [], most
    if block:
        yield block


def wanted(
    scheduled: Mapping[str, int], starts: Mapping[str, int], selections: Mapping[str, Selection]
) -> dict[str, list[Run]]:
    """What a step is to keep of each choice, before it has run; choices that want nothing of it are left out.

    scheduled: how many positions of each choice run in the step. starts: the first of them. selections: of the choices
    that capture.
    """
    found = {}
    for choice, count in scheduled.items():
        selection = selections.get(choice)
        if selection is not None and (runs := list(selection.runs(starts[choice], count))):
            found[choice] = runs
    return found


def pieces(
    wants: Mapping[str, Sequence[Run]],
    scheduled: Mapping[str, int],
    starts: Mapping[str, int],
    order: Sequence[str],
    query_starts: Sequence[int],
) -> list[Piece]:
    """Where the wanted rows of a step lie in its tensors.

    order: the choices as the step's batch has them; query_starts: the first row of each in the batch, and the end of
    the last. Raises ValueError if the batch is not what was scheduled.
    """
    place = {choice: number for number, choice in enumerate(order)}
    found = []
    for choice, runs in wants.items():
        number = place.get(choice)
        if number is None:
            raise ValueError("a choice was scheduled and is not in the batch")
        first = int(query_starts[number])
        if int(query_starts[number + 1]) - first != scheduled[choice]:
            raise ValueError("the batch has other positions of a choice than were scheduled")
        found += [Piece(choice, first + run.position - starts[choice], run) for run in runs]
    return found
