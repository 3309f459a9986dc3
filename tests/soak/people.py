"""The people of a soak: accounts with tokens and keys, made in the database of the Strata that is soaked."""
from __future__ import annotations

from dataclasses import dataclass

import httpx

from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets.grants import give_grant
from frontend.db import Database


@dataclass(frozen=True)
class Person:
    """An account, and a client that sends its key."""

    account_id: str
    client: httpx.Client

    @classmethod
    def make(cls, database: Database, url: str, name: str) -> Person:
        """Somebody with more tokens than a soak uses."""
        account = create_account(database, SYSTEM, f"{name}@example.org")
        give_grant(database, SYSTEM, account.id, 10**9, "for a soak")
        _, key = create_key(database, SYSTEM, account, "soak")
        return cls(account.id, httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=300,
            limits=httpx.Limits(max_connections=None)))
