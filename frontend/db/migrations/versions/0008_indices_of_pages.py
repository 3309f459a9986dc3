"""Count a Job's failures without reading all of its results, and find the acts of one kind without reading all others.

Revision ID: 0008
Revises: 0007
"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make an index of the results that failed, and one of acts."""
    failed = sa.text("code IS NOT NULL")
    op.create_index("ix_job_results_failed", "job_results", ["job_id", "code"],
                    sqlite_where=failed, postgresql_where=failed)
    op.create_index("ix_audit_events_action", "audit_events", ["action", "id"])
