"""Invitations, keys that are rotated, and the audit log.

Revision ID: 0002
Revises: 0001
"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from frontend.db.append_only import keep_forever

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make two tables, and let a key name the one that replaces it."""
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_invitations"),
        sa.UniqueConstraint("sha256", name="uq_invitations_sha256"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_invitations_account_id_accounts"),
    )
    op.create_index("ix_invitations_account_id", "invitations", ["account_id"])
    with op.batch_alter_table("api_keys") as keys:
        keys.add_column(sa.Column("replaced_by", sa.String(32)))
        keys.create_foreign_key("fk_api_keys_replaced_by_api_keys", "api_keys", ["replaced_by"], ["id"])
    op.create_table(
        "audit_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(254), nullable=False),
        sa.Column("origin", sa.String(254), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("account_id", sa.String(32)),
        sa.Column("details", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_events_account_id", "audit_events", ["account_id", "id"])
    op.create_index("ix_audit_events_actor", "audit_events", ["actor", "id"])
    keep_forever(op.get_bind(), "audit_events")
