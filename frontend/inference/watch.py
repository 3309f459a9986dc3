"""Notices streams that should have ended, and those whose engine process was killed: Triton goes on as if it might
still answer them.

A stream may be silent for good reasons, such as a long prompt or a full queue. So one that has been silent for a while
is a reason to ask the engine a question that it answers at once, and only what the answer says counts.
"""
from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

#: Seconds without a word after which the engine is asked, and asked again.
SILENCE = 5.0
#: Seconds between two looks at the streams.
_LOOK = 1.0


class Stream:
    """One stream that is watched. `broken` is set before it is given up because its engine's process is gone."""

    def __init__(self, model: str, address: str, give_up: Callable[[], object]) -> None:
        self.engine = model, address
        self.give_up = give_up
        self.broken = False
        self.last_word = time.monotonic()
        self._due = math.inf, give_up

    def heard(self) -> None:
        """The engine has said something."""
        self.last_word = time.monotonic()

    def due(self, seconds: float, otherwise: Callable[[], object]) -> None:
        """It should have ended in so many seconds; `otherwise` is called if it has not. Replaces what was due before.
        """
        self._due = time.monotonic() + seconds, otherwise

    def overdue(self, now: float) -> Callable[[], object] | None:
        """What is to be called, if it should have ended by now."""
        by, otherwise = self._due
        return otherwise if now >= by else None


class StreamWatch:
    """Watches the streams of one process, in a thread that starts with the first of them.

    `alive` asks whether a model's engine at an address has a living process; it may take seconds.
    """

    def __init__(self, alive: Callable[[str, str], bool]) -> None:
        self._alive = alive
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, model: str, address: str, give_up: Callable[[], object]) -> Stream:
        """Watch a stream until it is removed. `give_up` ends it and may be called from another thread."""
        stream = Stream(model, address, give_up)
        with self._lock:
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stream-watch", daemon=True)
                self._thread.start()
        return stream

    def remove(self, stream: Stream) -> None:
        """Watch it no longer."""
        with self._lock:
            self._streams.discard(stream)

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK)
            self.look()

    def look(self) -> None:
        """Call what is due of streams that should have ended; ask after the engines of those that are silent, and give
        up those whose engine is gone.
        """
        begun = time.monotonic()
        with self._lock:
            overdue = [call for stream in self._streams if (call := stream.overdue(begun))]
            silent = [stream for stream in self._streams if begun - stream.last_word >= SILENCE]
        for call in overdue:
            call()
        for engine in {stream.engine for stream in silent}:
            alive = self._alive(*engine)
            for stream in silent:
                if stream.engine != engine:
                    continue
                if alive or stream.last_word > begun:
                    stream.heard()
                else:
                    stream.broken = True
                    stream.give_up()
