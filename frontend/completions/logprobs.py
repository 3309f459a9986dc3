"""Turns rows of log probabilities into OpenAI's legacy `logprobs` and vLLM's `prompt_logprobs`.

Both are rendered to JSON an entry at a time: one position of the whole vocabulary is megabytes, so an answer never
stands in memory as text.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import orjson

from frontend.completions.whole_vocabulary import WholeVocabularyWriter, writer_for
from frontend.errors import InternalError
from frontend.inference import LogprobRows, Vocabulary

#: What JSON has instead of minus infinity, as vLLM's and OpenAI's users know it.
MINUS_INFINITY = -9999.0


def finite(value: float) -> float:
    """A log probability that JSON can carry."""
    return MINUS_INFINITY if value == -math.inf else value


def check_numbers(rows: LogprobRows) -> None:
    """Refuse NaN, a bug of the engine: as soon as rows come, since rendering happens when the answer has begun."""
    if np.isnan(rows.values).any():
        raise InternalError("Inference returned a log probability that is not a number.")


def positions_of(parts: Sequence[LogprobRows]) -> Iterator[tuple[LogprobRows, int]]:
    """Every position of rows that came in parts: the rows, and which of them."""
    return ((rows, row) for rows in parts for row in range(len(rows)))


@dataclass(frozen=True)
class TokenNames:
    """How tokens are called in an answer: by text, or as `token_id:N`."""

    vocabulary: Vocabulary
    as_ids: bool

    @property
    def writer(self) -> WholeVocabularyWriter:
        """Renders entries over the whole vocabulary."""
        return writer_for(self.vocabulary)

    def alone(self, token: int) -> str:
        """The name of a token that stands in no text."""
        return f"token_id:{token}" if self.as_ids else self.vocabulary.texts[token]

    def placed(self, token: int, text: str) -> str:
        """The name of a token that added `text` to the text.

        A special token is named by its content, also where the text leaves it out. A token that ends inside a
        character adds nothing, and the token that completes the character carries all of it.
        """
        if self.as_ids or token in self.vocabulary.special_ids:
            return self.alone(token)
        return text


@dataclass(frozen=True)
class PlacedToken:
    """A token, the characters [start, end) that it adds to its text, and where its log probabilities are.

    `rows` is None for a prompt's first token, which nothing predicts.
    """

    token: int
    name: str
    start: int
    end: int
    rows: LogprobRows | None
    row: int


@dataclass
class LegacyLogprobs:
    """OpenAI's `logprobs` of consecutive tokens, the `k` likeliest beside each, or all with k = -1."""

    names: TokenNames
    k: int
    tokens: list[PlacedToken] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, token: PlacedToken, offset: int) -> None:
        """Append one token; `offset` is its place in the choice's text."""
        self.tokens.append(token)
        self.offsets.append(offset)

    def render(self) -> Iterator[bytes]:
        """The JSON object in parts."""
        yield orjson.dumps({
            "tokens": [token.name for token in self.tokens],
            "token_logprobs": [None if t.rows is None else finite(_value(t.rows, t.row, t.token))
                               for t in self.tokens],
            "text_offset": self.offsets,
        })[:-1] + b',"top_logprobs":['
        for number, token in enumerate(self.tokens):
            yield b"," * bool(number) + (b"null" if token.rows is None else self._top(token, token.rows))
        yield b"]}"

    def _top(self, token: PlacedToken, rows: LogprobRows) -> bytes:
        if rows.ids is None and self.k < 0:
            return self.names.writer.top_logprobs(rows.values[token.row], self.names.as_ids, token.token, token.name)
        ids, values = likeliest(rows, token.row, self.k)
        top = {token.name: finite(_value(rows, token.row, token.token))}
        for other, value in zip(ids, values, strict=True):
            if other != token.token:
                key = self.names.alone(other)
                top[key] = max(finite(value), top.get(key, MINUS_INFINITY))
        return orjson.dumps(top)


def render_prompt_logprobs(
    parts: Sequence[LogprobRows], ids: tuple[int, ...], k: int, names: TokenNames
) -> Iterator[bytes]:
    """vLLM's `prompt_logprobs` of a prompt as a JSON list in parts; position i belongs to prompt token i + 1."""
    yield b"[null"
    for token, (rows, row) in zip(ids[1:], positions_of(parts), strict=True):
        rank = int(rows.ranks[row])
        if rows.ids is None and k < 0:
            yield b"," + names.writer.prompt_logprobs(rows.values[row], names.as_ids, token, rank)
            continue
        entry = {str(other): {"logprob": finite(value), "rank": place, "decoded_token": names.alone(other)}
                 for place, (other, value) in enumerate(zip(*likeliest(rows, row, k), strict=True), 1)}
        entry[str(token)] = {"logprob": finite(_value(rows, row, token)), "rank": rank,
                             "decoded_token": names.alone(token)}
        yield b"," + orjson.dumps(entry)
    yield b"]"


def likeliest(rows: LogprobRows, row: int, k: int) -> tuple[list[int], list[float]]:
    """The ids and log probabilities of the k likeliest tokens at a position, the likeliest first."""
    if rows.ids is not None:
        return rows.ids[row, 1 : k + 1].tolist(), rows.values[row, 1 : k + 1].tolist()
    values: npt.NDArray[np.float32] = rows.values[row]
    best = np.argpartition(-values, min(k, len(values) - 1))[:k]
    best = best[np.argsort(-values[best], kind="stable")]
    return best.tolist(), values[best].tolist()


def _value(rows: LogprobRows, row: int, token: int) -> float:
    return float(rows.values[row, token if rows.ids is None else 0])
