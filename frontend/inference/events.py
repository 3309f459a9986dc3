"""What crosses between the frontend and Triton, as plain data: no protobuf and no gRPC beyond this room."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt as the model reads it.

    `texts[i]` is what token i adds to the text, so joining them gives the text; empty for hidden special tokens and
    for tokens that end inside a character.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Every id of a model's vocabulary: its bytes, and its text when it stands alone.

    Compared by identity: comparing 128,000 texts is never what a caller wants.
    """

    raw: tuple[bytes, ...]
    texts: tuple[str, ...]
    special_ids: frozenset[int]

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.raw))


@dataclass(frozen=True)
class LogprobRows:
    """Log probabilities of consecutive positions.

    `ids` and `values` are [positions, 1 + k]: column 0 is the token that stands there, then the k likeliest in order.
    For the whole vocabulary `ids` is None and `values` is [positions, vocabulary] in the order of the ids.
    `ranks` is [positions]: the rank of the token that stands there, from 1.
    """

    ids: npt.NDArray[np.int32] | None
    values: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Capture:
    """Which Activations of a prompt and its completions the engine keeps.

    `layers` are Layer indices, "embedding" or "final_norm". `positions` is "all", "prompt", "generated" or "last", or
    absolute positions. `dtype` is "bfloat16", "float16" or "float32".
    """

    layers: tuple[int | str, ...]
    positions: str | tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class ActivationPart:
    """Some positions of what a Capture gave for one choice; the parts of a choice come in order.

    `data` holds [layers, positions, hidden] numbers, little-endian; `positions` are the absolute ones of its second
    axis.
    """

    dtype: str
    shape: tuple[int, ...]
    positions: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class Generation:
    """One prompt to run: what the engine entry of a model takes. `sampling` is its JSON object."""

    prompt_ids: tuple[int, ...]
    sampling: bytes
    stream: bool
    capture: Capture | None = None


@dataclass(frozen=True)
class EngineEvent:
    """One response of the engine: it concerns choice `index` of prompt `prompt`.

    `token_texts` and `logprobs` come only when log probabilities were asked for; `finish_reason` is set in a choice's
    last event, which brings the last part of its `activations`; the others come right before it. `prompt_logprobs`
    comes for index 0 alone, before any token, in one or more parts.
    """

    prompt: int
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    token_texts: tuple[str, ...] = ()
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    activations: ActivationPart | None = None


@dataclass(frozen=True, eq=False)
class LensReading:
    """What the output head reads in a residual stream: the likeliest ids at each Layer and position, the likeliest
    first, and their probabilities. Both are [layers, positions, top]."""

    ids: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float32]
