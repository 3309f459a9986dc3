"""The shared memory that slabs may take together, handed out in the order in which it was asked for.

Everything here runs in the engine's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SlabPool:
    """A number of bytes, and the line of those that wait for some."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._line: deque[Share] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    def ask(self, size: int) -> Share:
        """A place in the line for this many bytes, at most the capacity: all at once or none."""
        share = Share(self, size)
        self._line.append(share)
        self._advance()
        return share

    def _advance(self) -> None:
        while self._line and self.used + self._line[0].size <= self.capacity:
            share = self._line.popleft()
            self.used += share.size
            share.granted.set()

    def _give_back(self, share: Share) -> None:
        if share.granted.is_set():
            self.used -= share.size
        else:
            self._line.remove(share)
        self._advance()


class Share:
    """One request's part of the pool. `granted` is set when the bytes are its own, or when it has left the line."""

    def __init__(self, pool: SlabPool, size: int) -> None:
        self.size = size
        self.granted = asyncio.Event()
        self._pool: SlabPool | None = pool

    def give_back(self) -> None:
        """Lets others have the bytes, or leaves the line. May be called again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool._give_back(self)
            self.granted.set()
