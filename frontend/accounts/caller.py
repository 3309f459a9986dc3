"""Who sent a request, once its key is checked."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """The account and key behind a request, and what the key may be used for."""

    account_id: str
    key_id: str
    scopes: frozenset[str]
