"""A logit lens: what a Llama's output head would say of the residual stream at any Layer.

It reads a residual stream through the final norm and the head: logits = W · (x / sqrt(mean(x²) + eps) · g). The weights
are mapped from the checkpoint's files and used a part at a time, so they take memory only while they are read.
Format of the files: safetensors (github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
#: Rows of the head that are multiplied at once.
_PART = 8192
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True)
class Read:
    """The likeliest ids at each row and their probabilities, the likeliest first: both [rows, top]."""

    ids: npt.NDArray[np.int32]
    probabilities: Floats


class Lens:
    """The final norm and the output head of one checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._epsilon = float(json.loads((folder / "config.json").read_text())["rms_norm_eps"])
        tensors: dict[str, tuple[Path, int, Any]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            tensors |= {name: (file, 8 + length, described) for name, described in header.items()}
        self._gain = _floats(_mapped(*tensors["model.norm.weight"]))
        # A checkpoint without a head of its own uses its embeddings.
        self._head = _mapped(*(tensors.get("lm_head.weight") or tensors["model.embed_tokens.weight"]))

    @property
    def hidden(self) -> int:
        """Numbers of a row."""
        return len(self._gain)

    def read(self, residual: Floats, normed: bool, top: int) -> Read:
        """Read rows [rows, hidden]; `normed` rows have passed the final norm already."""
        rows = residual if normed else self._norm(residual)
        ids = np.zeros((len(rows), 0), np.int32)
        logits = np.zeros((len(rows), 0), np.float32)
        sums, most = np.zeros(len(rows)), np.full(len(rows), -np.inf)
        for start in range(0, len(self._head), _PART):
            part = rows @ _floats(self._head[start : start + _PART]).T  # [rows, part]
            higher = np.maximum(most, part.max(axis=1))
            sums = sums * np.exp(most - higher) + np.exp(part - higher[:, None]).sum(axis=1)
            most = higher
            best = np.argpartition(-part, min(top, part.shape[1]) - 1, axis=1)[:, :top]
            ids = np.concatenate([ids, (best + start).astype(np.int32)], axis=1)
            logits = np.concatenate([logits, np.take_along_axis(part, best, axis=1)], axis=1)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :top]
        chances = np.exp(np.take_along_axis(logits, order, axis=1) - most[:, None]) / sums[:, None]
        return Read(np.take_along_axis(ids, order, axis=1), chances.astype(np.float32))

    def _norm(self, rows: Floats) -> Floats:
        squares = np.mean(np.square(rows), axis=1, keepdims=True, dtype=np.float32)
        normed: Floats = rows / np.sqrt(squares + np.float32(self._epsilon)) * self._gain
        return normed


def _mapped(file: Path, start: int, described: Any) -> npt.NDArray[Any]:
    first, _ = described["data_offsets"]
    return np.memmap(file, _DTYPES[described["dtype"]], "r", start + first, tuple(described["shape"]))


def _floats(stored: npt.NDArray[Any]) -> Floats:
    """As float32. numpy has no bfloat16, which is the upper half of a float32."""
    if stored.dtype == _DTYPES["BF16"]:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(stored, np.float32)
