"""Writes shards: safetensors files with the Activations of several choices of a Job.

A shard says itself what it holds: its metadata has the model, its fingerprint, and `entries`, which are a JSON list of
what the manifest has for it. Each tensor is named for the index of its request and of its choice: "12.0".
"""
from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Iterator
from typing import Any

import orjson

from frontend.completions.activations import Activations
from frontend.completions.choices import Choice, Piece
from frontend.completions.tensor_file import DTYPES
from frontend.completions.walk import Run
from frontend.db.job_records import Item, Shard
from frontend.jobs.storage import Storage

#: Bytes of numbers from which on a shard is written, and seconds after which it is, whatever it has.
FULL, PATIENCE = 64 * 2**20, 2.0


def folder_of(job_id: str) -> str:
    """Where a Job's shards are in the storage."""
    return f"jobs/{job_id}"


class OpenShard:
    """A shard that is being filled, in memory. Its name is known from the start."""

    def __init__(self, first: int) -> None:
        """`first` is the index of the first request in it, by which shards are in order, more or less."""
        self.name = f"{first:06d}-{secrets.token_hex(6)}.safetensors"
        self.nbytes = 0
        self._metadata: dict[str, str] = {}
        self._tensors: list[tuple[str, Activations]] = []
        self._entries: list[dict[str, Any]] = []

    def add(self, item: Item, run: Run, choices: list[tuple[Choice, Piece]]) -> None:
        """Add the Activations of a request's choices."""
        for choice, piece in choices:
            assert piece.activations is not None  # they are all there, or the request fails
            tensor = self.tensor(item, choice)
            told = run.answer.described(choice, piece.activations)
            del told["format"]
            self._entries.append({"index": item.place, "custom_id": item.custom_id, "choice": choice.index,
                                  "tensor": tensor, **told, "shape": list(told["shape"])})
            self._tensors.append((tensor, piece.activations))
            self.nbytes += piece.activations.nbytes
        self._metadata = {"model": run.plan.request.model, "fingerprint": run.plan.card.fingerprint}

    @staticmethod
    def tensor(item: Item, choice: Choice) -> str:
        """The name of a choice's tensor."""
        return f"{item.place}.{choice.index}"

    def write(self, storage: Storage, job_id: str) -> Shard:
        """Write it. Raises Unavailable; it can be written again then."""
        digest, size = hashlib.sha256(), 0
        with storage.writing(f"{folder_of(job_id)}/{self.name}") as file:
            for part in self._parts():
                file.write(part)
                digest.update(part)
                size += len(part)
        return Shard(self.name, size, digest.hexdigest(), self._entries)

    def _parts(self) -> Iterator[bytes | memoryview]:
        at = 0
        header: dict[str, Any] = {"__metadata__": {**self._metadata, "entries": orjson.dumps(self._entries).decode()}}
        for name, activations in self._tensors:
            header[name] = {"dtype": DTYPES[activations.dtype], "shape": activations.shape,
                            "data_offsets": [at, at + activations.nbytes]}
            at += activations.nbytes
        head = orjson.dumps(header)
        head += b" " * (-len(head) % 8)
        yield struct.pack("<Q", len(head)) + head
        for _, activations in self._tensors:
            yield from activations.pieces()
