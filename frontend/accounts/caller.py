"""Who sent a request, once its key is checked."""
from __future__ import annotations

from dataclasses import dataclass

from frontend.db.token_records import LimitOverrides


@dataclass(frozen=True)
class Caller:
    """The account and key behind a request, what the key may be used for, how many tokens the account had available
    then, and where its limits differ from the settings'."""

    account_id: str
    key_id: str
    scopes: frozenset[str]
    available_tokens: int
    limits: LimitOverrides
