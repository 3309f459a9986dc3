"""What admins change of models' policies.

Revision ID: 0005
Revises: 0004
"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "model_policies",
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("warm", sa.String(16)), sa.Column("idle_minutes", sa.Float), sa.Column("warm_windows", sa.Text),
        sa.PrimaryKeyConstraint("model", name="pk_model_policies"),
    )
