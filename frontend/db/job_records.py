"""Rows about Jobs and files as the rest of the frontend sees them: frozen, without SQL."""
from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

#: A Job that is one of these is worked on, or will be by itself.
UNFINISHED = ("queued", "running", "paused")
#: A Job that is one of these stays as it is.
FINAL = ("completed", "failed", "cancelled", "expired")


@dataclass(frozen=True)
class Job:
    """A Job. `error` has the code and the message of what failed all of it, `batch` what only a batch has."""

    id: str
    account_id: str
    key_id: str
    name: str | None
    model: str
    status: str
    reason: str | None
    needs: int | None
    error: dict[str, str] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    total: int
    completed: int
    failed: int
    charged: int
    retries: int
    idempotency_key: str | None
    fingerprint: str
    batch: dict[str, Any] | None
    output_bytes: int
    error_bytes: int

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.status in FINAL


@dataclass(frozen=True)
class Item:
    """One request of a Job: `place` is its index, `body` the JSON of a completions request."""

    place: int
    custom_id: str | None
    body: bytes


@dataclass(frozen=True)
class Task:
    """A request that a lane has claimed: how often it was begun, this time included, and how often it failed."""

    item: Item
    attempts: int
    faults: int


@dataclass(frozen=True)
class Result:
    """What came of a request: `body` is the completion, or an error with its `code`, as JSON."""

    place: int
    custom_id: str | None
    status: int
    code: str | None
    request_id: str
    body: bytes


@dataclass(frozen=True)
class Shard:
    """A file of Activations in the storage; `entries` say which tensors are in it."""

    name: str
    bytes: int
    sha256: str
    entries: list[dict[str, Any]]


@dataclass(frozen=True)
class Lane:
    """One of the lanes in which a Job is worked on, and the worker that does, if any."""

    job_id: str
    lane: int
    worker: str | None
    beat: int

    @property
    def claim(self) -> str:
        """How its tasks say whose they are."""
        return claim_of(self.worker or "", self.lane)


@dataclass(frozen=True)
class StoredFile:
    """A file that somebody uploaded."""

    id: str
    account_id: str
    name: str
    bytes: int
    created_at: datetime
    expires_at: datetime


def claim_of(worker: str, lane: int) -> str:
    """A lane's mark on its tasks."""
    return f"{worker}/{lane}"
