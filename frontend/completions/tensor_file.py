"""Writes Activations as a safetensors file in parts, so that hundreds of megabytes never stand in memory twice.

Format (github.com/huggingface/safetensors): the length of the header as 8 bytes, little-endian; the header, JSON padded
with spaces so that the numbers begin at a multiple of 8; the numbers.
"""
from __future__ import annotations

import binascii
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import orjson

from frontend.completions.activations import Activations

#: The name of the one tensor in a file.
TENSOR = "activations"
#: What safetensors calls them.
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
#: Bytes of a part. A multiple of 3, so that each part is whole base64 by itself.
_PART = 3 * 2**18


@dataclass(frozen=True)
class TensorFile:
    """One file: its head, which is short, and the numbers, which are not copied."""

    head: bytes
    activations: Activations

    @classmethod
    def of(cls, activations: Activations, metadata: Mapping[str, str]) -> TensorFile:
        """The file of one choice's Activations. safetensors allows only texts as metadata."""
        header = orjson.dumps({
            "__metadata__": dict(metadata),
            TENSOR: {"dtype": DTYPES[activations.dtype], "shape": activations.shape,
                     "data_offsets": [0, activations.nbytes]},
        })
        header += b" " * (-len(header) % 8)
        return cls(struct.pack("<Q", len(header)) + header, activations)

    def __len__(self) -> int:
        return len(self.head) + self.activations.nbytes

    def parts(self) -> Iterator[bytes]:
        """The bytes of the file; all parts but the last have the same length."""
        waiting: list[memoryview] = []
        size = 0
        for piece in chain([memoryview(self.head)], self.activations.pieces()):
            while size + piece.nbytes >= _PART:
                yield b"".join([*waiting, piece[: _PART - size]])
                piece = piece[_PART - size :]
                waiting, size = [], 0
            waiting.append(piece)
            size += piece.nbytes
        if size:
            yield b"".join(waiting)

    def base64(self) -> Iterator[bytes]:
        """The file in base64."""
        for part in self.parts():
            yield binascii.b2a_base64(part, newline=False)
