"""The tables of the App: who is signed in where, and what people saved of the Workbench."""
from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, String, Table, Text

from frontend.db.tables import Moment, accounts, metadata

# A row for each browser that is signed in. It goes when the person signs out or ends it.
sessions = Table(
    "sessions", metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    # Of the cookie's secret.
    Column("sha256", String(64), nullable=False, unique=True),
    Column("created_at", Moment, nullable=False),
    Column("last_seen_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    # Where it was begun: an IP address, and what the browser calls itself.
    Column("origin", String(254), nullable=False),
    Column("agent", String(254), nullable=False),
    Index(None, "account_id"),
)

# Requests that people chose to keep; nothing else of the Workbench is stored.
saved_requests = Table(
    "saved_requests", metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("name", String(100), nullable=False),
    # The JSON body of POST /v1/completions.
    Column("body", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Index(None, "account_id"),
)
