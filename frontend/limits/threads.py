"""Shares this process's threads between people, so that one person's flood leaves some for everybody else.

Each request holds a thread while it runs or waits, and a process has so many. A person may have as many requests here
as threads are free: one who floods gets half of them, two get a third each, and some are always free for the next.
"""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from frontend.limits.rate import rate_limited
from frontend.limits.slots import RETRY


class Threads:
    """The threads of this process that requests of people hold."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def share(self, account_id: str) -> Iterator[None]:
        """Hold a thread while the block runs. Raises RateLimited where the account has its share."""
        with self._lock:
            free = self._threads - self._held.total()
            if self._held[account_id] >= max(1, free):
                raise rate_limited("This server is busy with requests of yours. Wait for some of them.", RETRY)
            self._held[account_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[account_id] -= 1
                if not self._held[account_id]:
                    del self._held[account_id]
