"""Log probabilities of one choice, kept as the numpy rows in which they come from the engine.

vLLM's own processor makes a Python object per number; with 128k columns that takes seconds a row and gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

#: What `logprobs` and `prompt_logprobs` say for the whole vocabulary.
WHOLE_VOCABULARY = -1


@dataclass(frozen=True)
class Rows:
    """Log probabilities of t positions.

    values: [t, k+1], column 0 the token that is there, then the k likeliest in order, named by ids of the same shape;
    or [t, vocab] in vocabulary order with ids None. ranks: [t], the rank of the token that is there, from 1.
    """

    ids: Ids | None
    values: Floats
    ranks: Ids

    def __len__(self) -> int:
        return len(self.values)

    def part(self, start: int, stop: int) -> Rows:
        """Rows start … stop-1, sharing memory."""
        ids = None if self.ids is None else self.ids[start:stop]
        return Rows(ids, self.values[start:stop], self.ranks[start:stop])


def rows_of(ids: Any, values: Any, ranks: Any, k: int, vocab_size: int) -> Rows:
    """The engine's arrays, cut to what this choice asked for: k likeliest tokens, or WHOLE_VOCABULARY.

    The engine computes a batch with the most columns that any request of it wants, so there may be more than k+1.
    For the whole vocabulary our worker appends one column per id, in order, to the named ones; vLLM's own worker names
    them all, sorted by likelihood, and they are put back into order here.
    """
    ids, values = np.asarray(ids), np.asarray(values)
    ranks = np.array(ranks, np.int32)
    if k != WHOLE_VOCABULARY:
        # Copies, lest a few columns keep the message of a whole batch alive.
        return Rows(ids[:, : k + 1].astype(np.int32), values[:, : k + 1].astype(np.float32), ranks)
    if ids.shape[1] < values.shape[1]:
        return Rows(None, np.ascontiguousarray(values[:, -vocab_size:], np.float32), ranks)
    whole = np.empty((len(values), vocab_size), np.float32)
    np.put_along_axis(whole, ids[:, 1:].astype(np.int64), values[:, 1:].astype(np.float32), axis=1)
    return Rows(None, whole, ranks)
