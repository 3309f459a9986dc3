"""The tables of spend: how long engines were up, at what price, and what that may cost."""
from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, String, Table

from frontend.db.tables import Moment, metadata

# One row for each model, month and price; its cost is milliseconds × price.
engine_uptime = Table(
    "engine_uptime", metadata,
    Column("model", String(64), primary_key=True),
    # In UTC, as 2026-01.
    Column("month", String(7), primary_key=True),
    # Millionths of a US dollar for an hour.
    Column("price", BigInteger, primary_key=True, autoincrement=False),
    Column("milliseconds", BigInteger, nullable=False),
)

# The same by day (UTC, as 2026-01-31), for pictures. A database may be older than this table: limits go by months.
engine_days = Table(
    "engine_days", metadata,
    Column("model", String(64), primary_key=True),
    Column("day", String(10), primary_key=True),
    Column("price", BigInteger, primary_key=True, autoincrement=False),
    Column("milliseconds", BigInteger, nullable=False),
)

# Up to when a model's uptime is counted, by the database's clock, so that nothing is counted twice.
uptime_marks = Table(
    "uptime_marks", metadata,
    Column("model", String(64), primary_key=True),
    Column("counted_until", Moment, nullable=False),
)

spend_limits = Table(
    "spend_limits", metadata,
    # A model's id, or `*` for all of them together.
    Column("scope", String(64), primary_key=True),
    # Millionths of a US dollar for a month.
    Column("amount", BigInteger, nullable=False),
)

# A warning that was given. Another limit, or another month, warns anew.
spend_warnings = Table(
    "spend_warnings", metadata,
    Column("scope", String(64), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("amount", BigInteger, primary_key=True, autoincrement=False),
    Column("percent", Integer, primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
)
