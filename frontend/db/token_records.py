"""Rows about tokens and spend as the rest of the frontend sees them: frozen, without SQL."""
from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Balance:
    """An account's tokens. granted = available + held + charged, always; the database refuses anything else."""

    granted: int
    available: int
    held: int
    charged: int


@dataclass(frozen=True)
class ClosedHold:
    """Tokens that were held by a request that has ended. `produced`: completion tokens at the last checkpoint, None
    before the engine had said anything."""

    id: str
    account_id: str
    key_id: str
    model: str
    route: str
    user_tag: str | None
    amount: int
    prompt_tokens: int
    produced: int | None


@dataclass(frozen=True)
class OpenHold(ClosedHold):
    """Tokens that a running request may use. `beat` goes up whenever the lease is renewed."""

    beat: int
    created_at: datetime


@dataclass(frozen=True)
class Grant:
    """Tokens that somebody gave an account. `spent` and `expired` are as far as anybody had to know; `open` while there
    may be something left."""

    id: str
    account_id: str
    amount: int
    note: str
    given_by: str
    given_at: datetime
    expires_at: datetime | None
    spent: int
    expired: int
    open: bool


@dataclass(frozen=True)
class TokenRequest:
    """What a person asked for. `status` is open, approved (with `grant_id`) or rejected (with a `note`)."""

    id: str
    account_id: str
    amount: int
    reason: str
    created_at: datetime
    status: str
    decided_by: str | None
    decided_at: datetime | None
    note: str | None
    grant_id: str | None


@dataclass(frozen=True)
class UsageRecord:
    """What one request used, without its texts. `charged` is prompt and completion tokens together, or 0.

    `settled_by` is `request`, or `keeper` where the process that ran it died; `latency_ms` is None then.
    """

    id: str
    account_id: str
    key_id: str
    at: datetime
    model: str
    route: str
    user_tag: str | None
    prompt_tokens: int
    completion_tokens: int
    charged: int
    activation_bytes: int
    status: int
    latency_ms: int | None
    settled_by: str


@dataclass(frozen=True)
class DayUsage:
    """What an account used of one model on one day (UTC, as 2026-01-31)."""

    day: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    charged: int


@dataclass(frozen=True)
class KeyUsage:
    """What an account used of one model with one key."""

    key_id: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    charged: int


@dataclass(frozen=True)
class LimitOverrides:
    """Where an account's limits differ from the settings'. None: the setting."""

    requests_per_minute: int | None = None
    active: int | None = None
    waiting: int | None = None


@dataclass(frozen=True)
class Uptime:
    """How long a model's engine was up in one month (UTC, as 2026-01), at a price in millionths of a dollar an hour."""

    model: str
    month: str
    price: int
    milliseconds: int
