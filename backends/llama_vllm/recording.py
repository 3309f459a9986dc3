"""The Activations of one request in flight, as Triton's stub sees them: its shared memory, and what is read from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from backends.llama_vllm import slab
from backends.llama_vllm.activations import ActivationRequest
from backends.llama_vllm.positions import PositionNotRun, Run, blocks
from backends.llama_vllm.slab import CaptureFailed, SlabReader
from backends.llama_vllm.slab_pool import Share, SlabPool

#: How long rows may take to arrive after the token that came from them. On a GPU they are copied beside the next step.
ARRIVAL_SECONDS = 5.0
LOOK_SECONDS = 0.002
#: A response holds about this much at most. Small ones keep every process on the way busy at once, and their memory
#: small: 64 MiB reach a client twice as fast as in one piece.
PART_BYTES = 4 * 2**20


class Recording:
    """One slab per choice, from the admission of the request to its end."""

    def __init__(self, wanted: ActivationRequest, choices: int, folder: Path, name: str, pool: SlabPool) -> None:
        """Names the slabs, in a folder in shared memory; `open` makes them."""
        self._wanted = wanted
        self._paths = [folder / f"{name}-{index}" for index in range(choices)]
        self._pool = pool
        self._share: Share | None = None
        self._making: asyncio.Future[None] | None = None
        self._closed = asyncio.Event()

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether positions are wanted that a hit in the prefix cache could keep from running."""
        return self._wanted.selection.first < self._wanted.selection.prompt - 1

    def extra_args(self, index: int) -> dict[str, Any]:
        """What a choice's SamplingParams tell the worker."""
        return self._wanted.extra_args(self._paths[index])

    async def open(self) -> bool:
        """Waits for its turn in the pool and makes the slabs; whether the request is still wanted then.

        Raises OSError (ENOSPC) if shared memory is fuller than the pool knows.
        """
        if self._closed.is_set():
            return False
        self._share = self._pool.ask(len(self._paths) * self._wanted.layout.size)
        await self._share.granted.wait()
        if self._closed.is_set():
            return False
        self._making = asyncio.get_running_loop().run_in_executor(None, self._make)
        await self._making
        return not self._closed.is_set()

    def close(self) -> None:
        """Frees the shared memory, or leaves the line for it. May be called again; `read` may not be after it.

        In the event loop; the memory is given back by a thread, since that takes time, and once the slabs are made.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        if self._share is None:
            return
        if self._making is None:
            self._share.give_back()
        elif self._making.done():
            self._free()
        else:
            self._making.add_done_callback(lambda _: self._free())

    def read(self, index: int, generated: int) -> Iterator[tuple[dict[str, Any], bool]]:
        """The tensors of a choice that has ended, in parts of PART_BYTES, and of each whether it is the last.

        activations: [layers, positions, hidden], activation_rows: [positions], the absolute position of each. Every row
        has been seen to be there before the first part comes. Waits a little for rows that are still on their way;
        blocks, so it is for a thread. Raises CaptureFailed.
        """
        try:
            runs = self._wanted.selection.answer(generated)
        except PositionNotRun as error:
            raise CaptureFailed(str(error)) from None
        reader = SlabReader(self._paths[index], self._wanted.layout)
        self._await_rows(reader, runs)
        parts = list(blocks(runs, max(1, PART_BYTES // self._wanted.layout.row_bytes))) or [[]]
        for place, part in enumerate(parts):
            positions = [np.arange(run.position, run.position + run.length, dtype=np.int32) for run in part]
            rows = np.concatenate([np.empty(0, np.int32), *positions])
            yield {"activations": reader.tensor(part), "activation_rows": rows}, place == len(parts) - 1

    def _await_rows(self, reader: SlabReader, runs: list[Run]) -> None:
        give_up = time.monotonic() + ARRIVAL_SECONDS
        while True:
            missing = reader.missing(runs)
            if (reason := reader.failure()) is not None:
                raise CaptureFailed(f"the activations could not be captured: {reason}")
            if missing is None:
                return
            if time.monotonic() > give_up:
                raise CaptureFailed(f"the activations of position {missing} did not arrive")
            time.sleep(LOOK_SECONDS)

    def _make(self) -> None:
        for path in self._paths:
            slab.create(path, self._wanted.layout)

    def _free(self) -> None:
        freed = asyncio.get_running_loop().run_in_executor(None, self._remove)
        freed.add_done_callback(self._give_back)

    def _give_back(self, _: object) -> None:
        if self._share is not None:
            self._share.give_back()

    def _remove(self) -> None:
        for path in self._paths:
            slab.discard(path)
