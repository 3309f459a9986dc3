"""Who may use the database next: threads get their turns in the order in which they came.

Waiting for other threads of ours is no sign that the database is away, however long it takes on a busy machine. So who
waits gives up only when no turn has ended well for a while.
"""
from __future__ import annotations

import threading
import time
from collections import deque


class NoTurn(Exception):
    """The turn has not come, and nobody else's ended well either."""


class Turns:
    """So many threads at a time. `patience` is how many seconds without a turn that ended well a thread waits."""

    def __init__(self, places: int, patience: float) -> None:
        self._free = places
        self._patience = patience
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._last_well = 0.0

    def take(self) -> None:
        """Wait for one's turn. Raises NoTurn."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        came = time.monotonic()
        while (left := max(came, self._last_well) + self._patience - time.monotonic()) > 0:
            if turn.wait(left):
                return
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise NoTurn
        # It came at the last moment.

    def end(self, well: bool) -> None:
        """Let the next one have its turn. `well`: whether the database answered."""
        with self._lock:
            if well:
                self._last_well = time.monotonic()
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
