"""The four things that happen to slots in Redis, each whole or not at all: Lua beside this file does them."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from redis import Redis

_PREFIX, _ACTIVE, _WAITING = "strata:slots:", ":active", ":waiting"
_BEATS, _SEQUENCE = "strata:slots-beats", "strata:slots-sequence"


class Scripts:
    """Slots of keys, and the processes whose requests have them. Raises redis's errors."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        folder = Path(__file__).parent
        self._enter, self._leave, self._keep, self._reap = (
            redis.register_script((folder / f"{name}.lua").read_text()) for name in ("enter", "leave", "keep", "reap"))

    def enter(self, process: str, ticket: str, key_id: str, active: int, waiting: int) -> int:
        """1: active now; 0: waits; −1: there is no room; −2: Redis does not know the process (any more)."""
        keys = [*_sets(key_id), _SEQUENCE, _tickets(process), _BEATS]
        return cast(int, self._enter(keys, [ticket, key_id, active, waiting, process]))

    def leave(self, process: str, ticket: str, key_id: str, active: int) -> list[str]:
        """Give a slot back. Returns the tickets that became active by that."""
        came = self._leave([*_sets(key_id), _tickets(process)], [ticket, active])
        return [name.decode() for name in cast("list[bytes]", came)]

    def keep(
        self, process: str, key_id: str, active: int, tickets: Sequence[str], waiting: Sequence[str]
    ) -> list[str]:
        """Say which active and waiting tickets of a key a process has. Returns the waiting ones that are active now.

        A Redis that lost everything learns of them by this, until `beat` tells it that it has heard of all keys.
        """
        keys = [*_sets(key_id), _SEQUENCE, _tickets(process), _BEATS]
        came = self._keep(keys, [key_id, active, process, len(tickets), *tickets, *waiting])
        return [name.decode() for name in cast("list[bytes]", came)]

    def beat(self, process: str) -> dict[str, int]:
        """Say that a process lives. Returns the beats of all."""
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hincrby(_BEATS, process, 1)
            pipeline.hgetall(_BEATS)
            beats = cast("dict[bytes, bytes]", pipeline.execute()[1])
        return {name.decode(): int(beat) for name, beat in beats.items()}

    def reap(self, process: str, beat: int) -> int:
        """Free the slots of a process whose beat still is `beat`. Returns how many it had."""
        return cast(int, self._reap([_BEATS, _tickets(process)], [process, beat, _PREFIX, _ACTIVE, _WAITING]))


def _sets(key_id: str) -> tuple[str, str]:
    return _PREFIX + key_id + _ACTIVE, _PREFIX + key_id + _WAITING


def _tickets(process: str) -> str:
    return f"strata:slots-of:{process}"
