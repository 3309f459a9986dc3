"""Writes one position's log probabilities over the whole vocabulary as JSON bytes.

A 128,256-id vocabulary makes entries of megabytes. Everything that does not depend on the numbers is rendered once for
a vocabulary; for a position only the numbers are rendered, by orjson from numpy, and joined in between.
"""
from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import orjson

from frontend.inference import Vocabulary

Row = npt.NDArray[np.float32]


class WholeVocabularyWriter:
    """For one vocabulary. Rows are [vocabulary] in the order of the ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def prompt_logprobs(self, row: Row, as_ids: bool, token: int, rank: int) -> bytes:
        """vLLM's map id → {logprob, rank, decoded_token} over all ids; `rank` is that of the token that stands there.

        The others are ranked by their order, from 1; equals keep the order of the ids.
        """
        ranks = np.empty(len(row), np.int64)
        ranks[np.argsort(-row, kind="stable")] = np.arange(1, len(row) + 1)
        ranks[token] = rank
        heads = self._id_heads_named if as_ids else self._id_heads
        parts: list[bytes] = [b""] * (4 * len(row))
        parts[0::4] = heads
        parts[1::4] = _numbers(row)
        parts[2::4] = self._rank_heads
        parts[3::4] = orjson.dumps(ranks, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        return b"{" + b"".join(parts) + b"}}"

    def top_logprobs(self, row: Row, as_ids: bool, token: int, name: str) -> bytes:
        """OpenAI's map text → log probability over all ids; of ids that decode alike, the likeliest keeps the key.

        The token that stands at this position goes by `name`, which its place in the text gave it.
        """
        if as_ids:
            keys, values = self._id_keys, row
        else:
            keys, order, starts = self._text_keys
            values = np.maximum.reduceat(row[order], starts)
            if name in self._texts:
                values[self._texts[name]] = max(values[self._texts[name]], row[token])
        parts: list[bytes] = [b""] * (2 * len(keys))
        parts[0::2] = keys
        parts[1::2] = _numbers(values)
        body = b"{" + b"".join(parts)
        if not as_ids and name not in self._texts:
            body += b"," + orjson.dumps(name) + b":" + _numbers(row[token : token + 1])[0]
        return body + b"}"

    @functools.cached_property
    def _texts(self) -> dict[str, int]:
        """Each distinct text, and its place among them."""
        return {text: place for place, text in enumerate(dict.fromkeys(self._vocabulary.texts))}

    @functools.cached_property
    def _id_heads(self) -> list[bytes]:
        return self._heads([orjson.dumps(text) for text in self._vocabulary.texts])

    @functools.cached_property
    def _id_heads_named(self) -> list[bytes]:
        return self._heads([b'"token_id:%d"' % i for i in range(len(self._vocabulary.texts))])

    @staticmethod
    def _heads(names: list[bytes]) -> list[bytes]:
        heads = [b'},"%d":{"decoded_token":%s,"logprob":' % (i, name) for i, name in enumerate(names)]
        heads[0] = heads[0][2:]
        return heads

    @functools.cached_property
    def _rank_heads(self) -> list[bytes]:
        return [b',"rank":'] * len(self._vocabulary.texts)

    @functools.cached_property
    def _id_keys(self) -> list[bytes]:
        keys = [b',"token_id:%d":' % i for i in range(len(self._vocabulary.texts))]
        keys[0] = keys[0][1:]
        return keys

    @functools.cached_property
    def _text_keys(self) -> tuple[list[bytes], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(a key for each distinct text, ids ordered by text, where each text's ids begin in that order)."""
        groups: dict[str, list[int]] = {}
        for token, text in enumerate(self._vocabulary.texts):
            groups.setdefault(text, []).append(token)
        keys = [b"," + orjson.dumps(text) + b":" for text in groups]
        keys[0] = keys[0][1:]
        order = np.array([token for tokens in groups.values() for token in tokens], np.int64)
        starts = np.cumsum([0, *(len(tokens) for tokens in groups.values())][:-1])
        return keys, order, starts.astype(np.int64)


def _numbers(row: Row) -> list[bytes]:
    """Each number as JSON; minus infinity is -9999.0."""
    clipped = np.ascontiguousarray(np.where(np.isneginf(row), np.float32(-9999.0), row), np.float32)
    return orjson.dumps(clipped, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


@functools.lru_cache(maxsize=4)
def writer_for(vocabulary: Vocabulary) -> WholeVocabularyWriter:
    """The writer of a vocabulary, kept since its texts take a while to render."""
    return WholeVocabularyWriter(vocabulary)
