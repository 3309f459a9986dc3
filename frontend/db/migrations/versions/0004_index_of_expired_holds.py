"""Find the holds that the keeper settled without reading all usage records: the metrics count them.

Revision ID: 0004
Revises: 0003
"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make an index of those few rows."""
    by_keeper = sa.text("settled_by = 'keeper'")
    op.create_index("ix_usage_records_by_keeper", "usage_records", ["settled_by"],
                    sqlite_where=by_keeper, postgresql_where=by_keeper)
