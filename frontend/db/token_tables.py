"""The tables of tokens: balances, the ledger, holds, Grants, requests for more, usage; and single accounts' limits."""
from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    text,
)

from frontend.db.tables import Moment, accounts, metadata

# One row for each account that was ever granted tokens. The database itself refuses a balance that does not add up.
balances = Table(
    "balances", metadata,
    Column("account_id", String(32), ForeignKey(accounts.c.id), primary_key=True),
    Column("granted", BigInteger, nullable=False),
    Column("available", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),
    Column("charged", BigInteger, nullable=False),
    # The earliest expiry of a Grant that nobody has looked at since it passed; NULL where none expires.
    Column("next_expiry", Moment),
    CheckConstraint("granted = available + held + charged", name="ck_balances_adds_up"),
    CheckConstraint("available >= 0 AND held >= 0 AND charged >= 0", name="ck_balances_not_negative"),
)

# Append-only: triggers refuse everything but inserts. `granted - charged` of a balance is the sum of its amounts.
ledger = Table(
    "ledger", metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("at", Moment, nullable=False),
    # grant and expiry (subject: the Grant), charge (subject: the usage record).
    Column("kind", String(16), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("subject", String(40), nullable=False),
    Index("ix_ledger_account_id", "account_id", "id"),
    sqlite_autoincrement=True,
)

# Tokens that a running request may use. A row goes when it is settled, which makes settling it twice impossible.
holds = Table(
    "holds", metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("key_id", String(32), nullable=False),
    Column("model", String(64), nullable=False),
    Column("route", String(64), nullable=False),
    Column("user_tag", String(256)),
    Column("amount", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    # Completion tokens at the last checkpoint; NULL until the engine has said something.
    Column("produced", BigInteger),
    # Goes up with each renewal of the lease. A time would depend on clocks that people can move.
    Column("beat", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Index(None, "account_id"),
)

grants = Table(
    "grants", metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    Column("given_by", String(254), nullable=False),
    Column("given_at", Moment, nullable=False),
    Column("expires_at", Moment),
    # How much of it was charged, as far as anybody had to know, and how much ran out with its date.
    Column("spent", BigInteger, nullable=False),
    Column("expired", BigInteger, nullable=False),
    # Whether there is anything left of it that could be charged or run out.
    Column("open", Boolean, nullable=False),
    CheckConstraint("amount > 0 AND spent >= 0 AND expired >= 0 AND spent + expired <= amount",
                    name="ck_grants_amounts"),
    Index("ix_grants_account_id", "account_id", "open"),
)

token_requests = Table(
    "token_requests", metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    # open, approved or rejected
    Column("status", String(16), nullable=False),
    Column("decided_by", String(254)),
    Column("decided_at", Moment),
    Column("note", Text),
    Column("grant_id", String(40), ForeignKey(grants.c.id)),
    Index(None, "account_id"),
    Index(None, "status"),
)

# What each request used. No texts. The id is that of the hold and of the ledger's charge.
usage_records = Table(
    "usage_records", metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("key_id", String(32), nullable=False),
    Column("at", Moment, nullable=False),
    # The day of `at` in UTC, as 2026-01-31.
    Column("day", String(10), nullable=False),
    Column("model", String(64), nullable=False),
    Column("route", String(64), nullable=False),
    Column("user_tag", String(256)),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    # What the ledger has for it: both together, or 0.
    Column("charged", BigInteger, nullable=False),
    Column("activation_bytes", BigInteger, nullable=False),
    Column("status", Integer, nullable=False),
    # NULL where the process that ran it died.
    Column("latency_ms", BigInteger),
    # request, or keeper
    Column("settled_by", String(16), nullable=False),
    Index("ix_usage_records_account_id", "account_id", "day"),
    Index("ix_usage_records_at", "at", "id"),
    Index("ix_usage_records_by_keeper", "settled_by",
          sqlite_where=text("settled_by = 'keeper'"), postgresql_where=text("settled_by = 'keeper'")),
)

# Where an account's limits differ from the settings'. NULL: the setting.
account_limits = Table(
    "account_limits", metadata,
    Column("account_id", String(32), ForeignKey(accounts.c.id), primary_key=True),
    Column("requests_per_minute", Integer),
    Column("active", Integer),
    Column("waiting", Integer),
)
