"""Which Tritons are drained.

Revision ID: 0009
Revises: 0008
"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "drained_tritons",
        sa.Column("address", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("address", name="pk_drained_tritons"),
    )
