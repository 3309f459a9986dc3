"""A slab: the file in shared memory that takes the Activations of one choice from vLLM's worker to Triton's stub.

    header   HEADER bytes: a length, and the message of a failure, UTF-8; empty while all is well
    stamps   int32 [rows]: 1 + the absolute position that a row holds, 0 while it holds none
    data     [rows, layers, hidden] in the data type asked for, beginning at a multiple of 64

The worker writes with pwrite and never maps the file: shared memory that has run out is then an OSError and not a
signal, and the reader may empty the file at any time. A row is stamped after its data.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.llama_vllm.positions import Run

HEADER = 512
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class CaptureFailed(Exception):
    """Activations that were asked for are not there; the message is one line for the caller."""


@dataclass(frozen=True)
class Layout:
    """What a slab holds; dtype is a key of DTYPES."""

    rows: int
    layers: int
    hidden: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """One position at all layers."""
        return self.layers * self.hidden * DTYPES[self.dtype].itemsize

    @property
    def data_at(self) -> int:
        """Where the rows begin."""
        return -(-(HEADER + 4 * self.rows) // 64) * 64

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.data_at + self.rows * self.row_bytes


def create(path: Path, layout: Layout) -> None:
    """Makes an empty slab, its memory reserved. Raises OSError (ENOSPC) if there is too little."""
    slab = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(slab, 0, layout.size)
    finally:
        os.close(slab)


def discard(path: Path) -> None:
    """Ends a slab. Its memory is free at once, although the worker may have it open."""
    try:
        os.truncate(path, 0)
        path.unlink()
    except FileNotFoundError:
        return


class SlabWriter:
    """The worker's end."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Raises OSError if there is no such slab."""
        self.layout = layout
        self._file = os.open(path, os.O_RDWR)

    def write(self, run: Run, rows: torch.Tensor) -> None:
        """Stores a run's rows, [count, layers, hidden] on the CPU, contiguous and of the slab's data type.

        Raises OSError if shared memory has run out.
        """
        self._put(rows.flatten().view(torch.uint8).numpy(), self.layout.data_at + run.row * self.layout.row_bytes)
        stamps = np.arange(run.position + 1, run.position + 1 + run.length, dtype=np.int32)
        self._put(stamps, HEADER + 4 * run.row)

    def fail(self, reason: str) -> None:
        """Says that rows will be missing. The first reason stands."""
        if not any(os.pread(self._file, 4, 0)):
            text = reason.encode()[: HEADER - 4]
            self._put(len(text).to_bytes(4, "little") + text, 0)

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._file)

    def _put(self, data: Any, at: int) -> None:
        if os.pwrite(self._file, data, at) != memoryview(data).nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SlabReader:
    """The stub's end. Not to be used after `discard`."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        with path.open("r+b") as slab:
            self._memory = mmap.mmap(slab.fileno(), layout.size)

    def failure(self) -> str | None:
        """Why rows are missing, if the worker said so."""
        length = int.from_bytes(self._memory[:4], "little")
        return self._memory[4 : 4 + length].decode(errors="replace") if length else None

    def missing(self, runs: Sequence[Run]) -> int | None:
        """The first position of these that its row does not hold; None if every row is there."""
        stamps = np.frombuffer(self._memory, np.int32, self._layout.rows, HEADER)
        for run in runs:
            held = stamps[run.row : run.row + run.length] - 1
            wrong = np.flatnonzero(held != np.arange(run.position, run.position + run.length))
            if len(wrong):
                return run.position + int(wrong[0])
        return None

    def tensor(self, runs: Sequence[Run]) -> torch.Tensor:
        """A copy of these rows: [layers, positions, hidden]."""
        layout = self._layout
        dtype = DTYPES[layout.dtype]
        # Copied by numpy as integers of the same size: torch would have several threads wait for each other.
        integer = np.dtype(f"i{dtype.itemsize}")
        shape = (layout.layers, sum(run.length for run in runs), layout.hidden)
        if not runs:
            return torch.empty(shape, dtype=dtype)  # with torch's strides: those of numpy's empty arrays Triton refuses
        answer = np.empty(shape, integer)
        data = np.frombuffer(self._memory, integer, layout.rows * layout.layers * layout.hidden, layout.data_at)
        rows = data.reshape(layout.rows, layout.layers, layout.hidden)
        at = 0
        for run in runs:
            answer[:, at : at + run.length] = rows[run.row : run.row + run.length].swapaxes(0, 1)
            at += run.length
        return torch.from_numpy(answer).view(dtype)
