"""The tables. A change here needs a migration in `migrations/versions`; a test compares the two."""
from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


class Moment(TypeDecorator[datetime]):
    """A point in time, always UTC with its zone, also from SQLite, which stores none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database: in UTC. A time without a zone is a mistake of ours."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time must carry its zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From the database: in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData(naming_convention={
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
})

accounts = Table(
    "accounts", metadata,
    Column("id", String(32), primary_key=True),
    Column("email", String(254), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    # NULL: the account has no password, so nobody can sign in with one.
    Column("password_hash", String(255)),
    Column("created_at", Moment, nullable=False),
    Column("disabled", Boolean, nullable=False),
)

api_keys = Table(
    "api_keys", metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("name", String(100), nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    # Names separated by spaces, as in OAuth.
    Column("scopes", String(255), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
    Column("last_used_at", Moment),
    # The key that takes this one's place; this one expires when the overlap ends.
    Column("replaced_by", String(32), ForeignKey("api_keys.id")),
    Index(None, "account_id"),
)

invitations = Table(
    "invitations", metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("accepted_at", Moment),
    Index(None, "account_id"),
)

# Append-only: triggers refuse everything but inserts.
audit_events = Table(
    "audit_events", metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", Moment, nullable=False),
    # An account's id, or `cli:` and the name of a user of the machine, or `system`.
    Column("actor", String(254), nullable=False),
    # An IP address or a host's name.
    Column("origin", String(254), nullable=False),
    Column("action", String(64), nullable=False),
    # The id of what was acted on, and the account that it belongs to. No foreign keys: the log outlives what it names.
    Column("subject", String(64), nullable=False),
    Column("account_id", String(32)),
    Column("details", Text, nullable=False),
    Index("ix_audit_events_account_id", "account_id", "id"),
    Index("ix_audit_events_actor", "actor", "id"),
    Index("ix_audit_events_action", "action", "id"),
    sqlite_autoincrement=True,
)
