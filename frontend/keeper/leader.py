"""Of several keepers one loads and unloads models; another takes over when its beat has stood still for a while."""
from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from redis import Redis

from frontend.stillness import Stillness
from frontend.warmth.records import KEEPER

#: Seconds for which the beat may stand still.
LEASE = 10.0


class Leader:
    """One keeper's part in that. Raises redis's errors."""

    def __init__(self, redis: Redis, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`every`: seconds between two rounds."""
        self._script = redis.register_script(Path(__file__).with_name("leader.lua").read_text())
        self._name = secrets.token_hex(8)
        self._stillness: Stillness[str] = Stillness(LEASE, every, clock)

    def works(self) -> bool:
        """Whether it is this one that works; asked in every round."""
        works, beat = self._ask("")
        if not works and self._stillness.observe({KEEPER: beat}):
            works, _ = self._ask(str(beat))
        if works:
            self._stillness.forget()
        return bool(works)

    def _ask(self, dead: str) -> tuple[int, int]:
        works, beat = cast("list[int]", self._script([KEEPER], [self._name, dead]))
        return works, beat
