"""The Activations that a caller asks for, checked strictly: at which Layers, at which positions, in which data type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.llama_vllm.positions import Kind, Selection
from backends.llama_vllm.sampling import InvalidRequest, Sampling
from backends.llama_vllm.slab import DTYPES, Layout

#: What `layers` may hold beside the indices of Layers, and what `positions` may be beside a list.
EMBEDDING, FINAL_NORM = "embedding", "final_norm"
WORDS: tuple[Kind, ...] = ("all", "prompt", "generated", "last")

#: The final norm among the points of a model. The others count as vLLM's auxiliary outputs do: 0 is the embedding,
#: k the residual stream after block k-1.
FINAL_NORM_POINT = -1

#: The key of vLLM's additional_config, which is part of its compile cache's, for the catalog's `activation_layers`.
CONFIG_KEY = "activation_layers"

#: The key of SamplingParams.extra_args for what the worker is to capture.
EXTRA_ARG = "activations"

#: For "last", so many of the latest positions are kept: the engine runs a step past an end that it finds itself.
LATEST = 4
#: A stop string is found outside of the engine, which may have run on for a while: then as many as fit these bytes.
LATEST_BYTES_BEFORE_STOP = 16 * 2**20
MOST_LATEST = 256

#: A listed position, canonical and of a sane size.
_POSITION = re.compile(r"0|-?[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class ActivationLimits:
    """What one engine allows. `layers` names what may be asked for; dtype is the model's own.

    max_bytes bounds the Activations of one request; pool_bytes the shared memory that its slabs may take. refusal says
    why none may be asked for, where that is so.
    """

    n_layers: int
    hidden_size: int
    dtype: str
    layers: frozenset[str]
    max_bytes: int
    pool_bytes: int
    refusal: str = ""


@dataclass(frozen=True)
class ActivationRequest:
    """What each choice of a request is to capture. points: in the order asked, FINAL_NORM_POINT or an auxiliary
    output's number."""

    points: tuple[int, ...]
    selection: Selection
    layout: Layout

    def extra_args(self, slab: Path) -> dict[str, Any]:
        """The SamplingParams.extra_args that tell the worker to capture this into a slab: plain values."""
        selection, layout = self.selection, self.layout
        return {
            EXTRA_ARG: {
                "slab": str(slab),
                "points": list(self.points),
                "kind": selection.kind,
                "prompt": selection.prompt,
                "max_tokens": selection.max_tokens,
                "positions": list(selection.positions),
                "latest": selection.latest,
                "hidden": layout.hidden,
                "dtype": layout.dtype,
            }
        }

    @classmethod
    def of_extra_args(cls, extra_args: Mapping[str, Any] | None) -> tuple[Path, ActivationRequest] | None:
        """The slab, and what to capture into it; None if nothing is to be captured."""
        told = (extra_args or {}).get(EXTRA_ARG)
        if told is None:
            return None
        selection = Selection(
            told["kind"], told["prompt"], told["max_tokens"], tuple(told["positions"]), told["latest"]
        )
        layout = Layout(selection.rows, len(told["points"]), told["hidden"], told["dtype"])
        return Path(told["slab"]), cls(tuple(told["points"]), selection, layout)


def point_of(layer: str) -> int:
    """Where a Layer that was named lies in the model."""
    if layer == FINAL_NORM:
        return FINAL_NORM_POINT
    return 0 if layer == EMBEDDING else int(layer) + 1


def capturable(layers: str | Sequence[int | str], n_layers: int) -> frozenset[str]:
    """What a catalog's `activation_layers` allows. Raises ValueError if it names what the model lacks."""
    every = frozenset([*map(str, range(n_layers)), EMBEDDING, FINAL_NORM])
    if layers == "all":
        return every
    named = frozenset(map(str, layers))
    if unknown := named - every:
        raise ValueError(f"activation_layers has {min(unknown)}, and the model has {n_layers} Layers")
    return named


def points(layers: str | Sequence[int | str], n_layers: int) -> frozenset[int]:
    """The same as points of the model."""
    return frozenset(map(point_of, capturable(layers, n_layers)))


def refusal(parallel: Any) -> str:
    """Why an engine that is spread like this (vLLM's ParallelConfig) captures nothing; empty if it does."""
    if parallel.pipeline_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "activations are not available on a model that is served with pipeline or context parallelism"
    return ""


def parse_activations(
    layers: Sequence[bytes] | None,
    positions: Sequence[bytes] | None,
    dtype: bytes | None,
    prompt_tokens: int,
    sampling: Sampling,
    limits: ActivationLimits,
) -> ActivationRequest | None:
    """The Activations that one request asks for, None if it asks for none. sampling: max_tokens settled.

    Raises InvalidRequest.
    """
    if layers is None:
        if positions is not None or dtype is not None:
            raise InvalidRequest("activation_positions and activation_dtype need activation_layers")
        return None
    if limits.refusal:
        raise InvalidRequest(limits.refusal)
    asked = tuple(map(point_of, _layers([_text(layer) for layer in layers], limits)))
    name = limits.dtype if dtype is None else _text(dtype)
    if name not in DTYPES:
        raise InvalidRequest(f"activation_dtype must be one of {', '.join(DTYPES)}")
    words = ["all"] if positions is None else [_text(position) for position in positions]
    row_bytes = Layout(1, len(asked), limits.hidden_size, name).row_bytes
    latest = min(max(LATEST, LATEST_BYTES_BEFORE_STOP // row_bytes), MOST_LATEST) if sampling.stop else LATEST
    selection = _selection(words, prompt_tokens, sampling.max_tokens, latest)
    layout = Layout(selection.rows, len(asked), limits.hidden_size, name)
    _check_size(layout, selection, sampling.n, limits)
    return ActivationRequest(asked, selection, layout)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _layers(names: list[str], limits: ActivationLimits) -> list[str]:
    if names == ["all"]:
        names = list(map(str, range(limits.n_layers)))
    if not names:
        raise InvalidRequest("activation_layers must not be empty")
    if len(set(names)) < len(names):
        raise InvalidRequest("activation_layers holds the same Layer twice")
    every = capturable("all", limits.n_layers)
    for name in names:
        if name not in every:
            raise InvalidRequest(
                f"activation_layers: {name[:40]!r} must be 0 to {limits.n_layers - 1}, {EMBEDDING} or {FINAL_NORM}, "
                "or all alone"
            )
        if name not in limits.layers:
            raise InvalidRequest(f"activation_layers: {name} can't be captured on this server")
    return names


def _selection(words: list[str], prompt: int, max_tokens: int, latest: int) -> Selection:
    for kind in WORDS:
        if words == [kind]:
            return Selection(kind, prompt, max_tokens, latest=latest)
    if not words:
        raise InvalidRequest("activation_positions must not be empty")
    end = prompt + max_tokens - 1
    found = []
    for word in words:
        if not _POSITION.fullmatch(word):
            raise InvalidRequest(
                f"activation_positions: {word[:40]!r} must be one of {', '.join(WORDS)} alone, or an integer"
            )
        position = int(word)
        absolute = position + prompt if position < 0 else position
        if not 0 <= absolute < end:
            raise InvalidRequest(
                f"activation_positions: {position} is outside of the {end} positions that {prompt} prompt tokens and "
                f"max_tokens {max_tokens} can run"
            )
        found.append(absolute)
    if len(set(found)) < len(found):
        raise InvalidRequest("activation_positions holds the same position twice")
    return Selection("list", prompt, max_tokens, tuple(found))


def _check_size(layout: Layout, selection: Selection, choices: int, limits: ActivationLimits) -> None:
    size = choices * selection.most * layout.row_bytes
    if size > limits.max_bytes:
        raise InvalidRequest(
            f"the activations would take up to {size} bytes and may take {limits.max_bytes}: ask for fewer Layers, "
            "positions or choices, a smaller max_tokens or a smaller data type"
        )
    if choices * layout.size > limits.pool_bytes:
        raise InvalidRequest(
            f"the activations need {choices * layout.size} bytes of shared memory and can never fit into the "
            f"{limits.pool_bytes} that the engine has for them"
        )
