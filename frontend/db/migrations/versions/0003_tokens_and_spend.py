"""Tokens, usage, limits of single accounts, and spend.

Revision ID: 0003
Revises: 0002
"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from frontend.db.append_only import keep_forever

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _balances()
    _holds_and_usage()
    _grants()
    _spend()


def _number(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _moment(name: str, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, length: int, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _of_account(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=f"fk_{table}_account_id_accounts")


def _balances() -> None:
    op.create_table(
        "balances",
        _text("account_id", 32), _number("granted"), _number("available"), _number("held"), _number("charged"),
        _moment("next_expiry", nullable=True),
        sa.PrimaryKeyConstraint("account_id", name="pk_balances"), _of_account("balances"),
        sa.CheckConstraint("granted = available + held + charged", name="ck_balances_adds_up"),
        sa.CheckConstraint("available >= 0 AND held >= 0 AND charged >= 0", name="ck_balances_not_negative"),
    )
    op.create_table(
        "ledger",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        _text("account_id", 32), _moment("at"), _text("kind", 16), _number("amount"), _text("subject", 40),
        sa.PrimaryKeyConstraint("id", name="pk_ledger"), _of_account("ledger"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ledger_account_id", "ledger", ["account_id", "id"])
    keep_forever(op.get_bind(), "ledger")
    op.create_table(
        "account_limits",
        _text("account_id", 32),
        sa.Column("requests_per_minute", sa.Integer), sa.Column("active", sa.Integer), sa.Column("waiting", sa.Integer),
        sa.PrimaryKeyConstraint("account_id", name="pk_account_limits"), _of_account("account_limits"),
    )


def _holds_and_usage() -> None:
    op.create_table(
        "holds",
        _text("id", 40), _text("account_id", 32), _text("key_id", 32), _text("model", 64), _text("route", 64),
        _text("user_tag", 256, nullable=True), _number("amount"), _number("prompt_tokens"),
        _number("produced", nullable=True), _number("beat"), _moment("created_at"),
        sa.PrimaryKeyConstraint("id", name="pk_holds"), _of_account("holds"),
    )
    op.create_index("ix_holds_account_id", "holds", ["account_id"])
    op.create_table(
        "usage_records",
        _text("id", 40), _text("account_id", 32), _text("key_id", 32), _moment("at"), _text("day", 10),
        _text("model", 64), _text("route", 64), _text("user_tag", 256, nullable=True), _number("prompt_tokens"),
        _number("completion_tokens"), _number("charged"), _number("activation_bytes"),
        sa.Column("status", sa.Integer, nullable=False), _number("latency_ms", nullable=True), _text("settled_by", 16),
        sa.PrimaryKeyConstraint("id", name="pk_usage_records"), _of_account("usage_records"),
    )
    op.create_index("ix_usage_records_account_id", "usage_records", ["account_id", "day"])
    op.create_index("ix_usage_records_at", "usage_records", ["at", "id"])


def _grants() -> None:
    op.create_table(
        "grants",
        _text("id", 40), _text("account_id", 32), _number("amount"), sa.Column("note", sa.Text, nullable=False),
        _text("given_by", 254), _moment("given_at"), _moment("expires_at", nullable=True), _number("spent"),
        _number("expired"), sa.Column("open", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_grants"), _of_account("grants"),
        sa.CheckConstraint("amount > 0 AND spent >= 0 AND expired >= 0 AND spent + expired <= amount",
                           name="ck_grants_amounts"),
    )
    op.create_index("ix_grants_account_id", "grants", ["account_id", "open"])
    op.create_table(
        "token_requests",
        _text("id", 40), _text("account_id", 32), _number("amount"), sa.Column("reason", sa.Text, nullable=False),
        _moment("created_at"), _text("status", 16), _text("decided_by", 254, nullable=True),
        _moment("decided_at", nullable=True), sa.Column("note", sa.Text), _text("grant_id", 40, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_token_requests"), _of_account("token_requests"),
        sa.ForeignKeyConstraint(["grant_id"], ["grants.id"], name="fk_token_requests_grant_id_grants"),
    )
    op.create_index("ix_token_requests_account_id", "token_requests", ["account_id"])
    op.create_index("ix_token_requests_status", "token_requests", ["status"])


def _spend() -> None:
    op.create_table(
        "engine_uptime",
        _text("model", 64), _text("month", 7), _number("price"), _number("milliseconds"),
        sa.PrimaryKeyConstraint("model", "month", "price", name="pk_engine_uptime"),
    )
    op.create_table(
        "uptime_marks", _text("model", 64), _moment("counted_until"),
        sa.PrimaryKeyConstraint("model", name="pk_uptime_marks"),
    )
    op.create_table(
        "spend_limits", _text("scope", 64), _number("amount"),
        sa.PrimaryKeyConstraint("scope", name="pk_spend_limits"),
    )
    op.create_table(
        "spend_warnings",
        _text("scope", 64), _text("month", 7), _number("amount"), sa.Column("percent", sa.Integer, nullable=False),
        _moment("at"),
        sa.PrimaryKeyConstraint("scope", "month", "amount", "percent", name="pk_spend_warnings"),
    )
