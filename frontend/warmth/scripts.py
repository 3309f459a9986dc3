"""What happens to places in Redis, each thing whole or not at all: Lua beside this file does it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from redis import Redis

BEATS = "strata:places:beats"


@dataclass(frozen=True)
class Ticket:
    """A request's claim to a place. `endpoint` is where it is, empty while it waits."""

    name: str
    model: str
    account_id: str
    endpoint: str


@dataclass(frozen=True)
class Entered:
    """Where a ticket is, the sequence of the moment, and why it was refused: empty, "unknown" (the process), "full", or
    after how many seconds its turn would come."""

    endpoint: str
    sequence: int
    refused: str


@dataclass(frozen=True)
class Crowd:
    """People's requests that are active at a model and that wait for it, those of Jobs, and how many seconds ago a
    person asked for it."""

    active: int
    waiting: int
    of_jobs: int
    asked_ago: float


class Scripts:
    """Places of all models. Raises redis's errors."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        folder = Path(__file__).parent
        prelude = (folder / "places.lua").read_text()
        self._enter, self._leave, self._look, self._keep, self._reap, self._close, self._crowd = (
            redis.register_script(prelude + (folder / f"{name}.lua").read_text())
            for name in ("enter", "leave", "look", "keep", "reap", "close", "crowd"))

    def enter(
        self, process: str, ticket: Ticket, capacity: int, waiting: int, patience: float, warm: Sequence[str]
    ) -> Entered:
        """Let a ticket in, or let it wait, up to `patience` seconds for its turn at the `warm` endpoints."""
        endpoint, sequence, refused = cast("tuple[bytes, int, bytes]", self._enter((), [
            process, ticket.name, ticket.model, ticket.account_id, capacity, waiting, patience, *warm]))
        return Entered(endpoint.decode(), sequence, refused.decode())

    def leave(self, process: str, ticket: Ticket, capacity: int, seconds: float | None, warm: Sequence[str]) -> None:
        """Give a place back, which was used for so many seconds."""
        self._leave((), [process, ticket.name, ticket.model, capacity, "" if seconds is None else seconds, *warm])

    def look(
        self, process: str, model: str, capacity: int, tickets: Sequence[str], warm: Sequence[str]
    ) -> list[str]:
        """Where each of a process's tickets for a model is now."""
        found = cast("list[bytes]", self._look((), [process, model, capacity, len(tickets), *tickets, *warm]))
        return [endpoint.decode() for endpoint in found]

    def keep(self, process: str, tickets: Sequence[Ticket]) -> bool:
        """Say that a process lives, and what it has. Whether Redis had lost that."""
        said = [part for one in tickets for part in (one.name, one.model, one.account_id, one.endpoint)]
        return bool(self._keep((), [process, *said]))

    def beats(self) -> dict[str, int]:
        """The beats of all processes."""
        beats = cast("dict[bytes, bytes]", self._redis.hgetall(BEATS))
        return {name.decode(): int(beat) for name, beat in beats.items()}

    def reap(self, process: str, beat: int) -> int:
        """Free the places of a process whose beat still is `beat`. Returns how many it had."""
        return cast(int, self._reap((), [process, beat]))

    def crowd(self, model: str, warm: Sequence[str]) -> Crowd:
        """Who is at a model, of which the `warm` endpoints are known, and who waits for it."""
        active, waiting, of_jobs, asked = cast("list[int]", self._crowd((), [model, *warm]))
        return Crowd(active, waiting, of_jobs, float("inf") if asked < 0 else float(asked))

    def close(self, model: str, endpoint: str, idle_seconds: float) -> bool:
        """Close a model at an endpoint if nothing of it was asked there for so long. Whether it is closed now."""
        return bool(self._close((), [model, endpoint, idle_seconds]))
