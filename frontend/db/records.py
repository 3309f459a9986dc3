"""Rows as the rest of the frontend sees them: frozen, without SQL and without secrets."""
from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from frontend.db.token_records import LimitOverrides


@dataclass(frozen=True)
class Account:
    """A person. `role` is `admin` or `member`; without a password nobody can sign in."""

    id: str
    email: str
    role: str
    created_at: datetime
    disabled: bool
    has_password: bool


@dataclass(frozen=True)
class ApiKey:
    """A key without its secret; `prefix` is the part that people may see, `replaced_by` the key that it was rotated to.
    """

    id: str
    account_id: str
    name: str
    prefix: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None


@dataclass(frozen=True)
class KeyCheck:
    """What a key check needs to know: the key, whether its account is disabled, and its tokens and limits."""

    key: ApiKey
    sha256: str
    disabled: bool
    available_tokens: int
    limits: LimitOverrides


@dataclass(frozen=True)
class AuditEvent:
    """One line of the audit log. `details` is what the JSON object in it says."""

    id: int
    at: datetime
    actor: str
    origin: str
    action: str
    subject: str
    account_id: str | None
    details: dict[str, Any]


@dataclass(frozen=True)
class Invitation:
    """A person's way to a first password, without its secret."""

    id: str
    account_id: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Session:
    """A browser that is signed in: since when, until when, and where that began."""

    id: str
    account_id: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    origin: str
    agent: str


@dataclass(frozen=True)
class SavedRequest:
    """A completions request that a person keeps; `body` is its JSON."""

    id: str
    account_id: str
    name: str
    body: str
    created_at: datetime
