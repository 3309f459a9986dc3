"""What a worker works with, and how its threads hear that it stops."""
from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.inference import Inference
from frontend.jobs.storage import Storage
from frontend.settings import Settings
from frontend.warmth.places import Places


class Lanes:
    """The lanes that this worker knows it is in: not those that it took and never heard so. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def turn(self, job_id: str, lane: int) -> Iterator[None]:
        """Be in a lane, or try to, for as long as the block runs."""
        with self._lock:
            self._turns[job_id, lane] += 1
        try:
            yield
        finally:
            with self._lock:
                self._turns[job_id, lane] -= 1
                if not self._turns[job_id, lane]:
                    del self._turns[job_id, lane]

    def now(self) -> list[tuple[str, int]]:
        """All of them."""
        with self._lock:
            return list(self._turns)


@dataclass(frozen=True)
class Tools:
    """All that lives as long as the worker."""

    settings: Settings
    database: Database
    inference: Inference
    places: Places
    leases: Leases
    storage: Storage
    #: How lanes say whose they are. Never used again.
    worker: str = field(default_factory=lambda: secrets.token_hex(8))
    lanes: Lanes = field(default_factory=Lanes)
    #: Set when nothing new is to be begun, and when what could not be stored is given up.
    stopping: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
