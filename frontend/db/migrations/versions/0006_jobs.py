"""Jobs, their requests, results and shards, and files.

Revision ID: 0006
Revises: 0005
"""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _jobs()
    _work()
    op.create_table(
        "files",
        _text("id", 40), _text("account_id", 32), _text("name", 255), _number("bytes"), _moment("created_at"),
        _moment("expires_at"),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_files_account_id_accounts"),
    )
    op.create_index("ix_files_account_id", "files", ["account_id", "created_at", "id"])
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
    op.create_table(
        "job_sums", _text("name", 32), _number("value"), sa.PrimaryKeyConstraint("name", name="pk_job_sums"))


def _text(name: str, length: int, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _number(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)


def _moment(name: str, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=f"fk_{table}_job_id_jobs")


def _jobs() -> None:
    op.create_table(
        "jobs",
        _text("id", 32), _text("account_id", 32), _text("key_id", 32), _text("name", 256, nullable=True),
        _text("model", 64), _text("status", 16), _text("reason", 32, nullable=True), _number("needs", nullable=True),
        sa.Column("error", sa.Text), _moment("created_at"), _moment("started_at", nullable=True),
        _moment("finished_at", nullable=True), _moment("expires_at"), _count("total"), _count("completed"),
        _count("failed"), _number("charged"), _count("retries"), _text("idempotency_key", 256, nullable=True),
        _text("fingerprint", 64), sa.Column("batch", sa.Text), _number("output_bytes"), _number("error_bytes"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_jobs_account_id_accounts"),
    )
    op.create_index("ix_jobs_account_id", "jobs", ["account_id", "created_at", "id"])
    op.create_index("ix_jobs_idempotency_key", "jobs", ["account_id", "idempotency_key"], unique=True)
    op.create_index("ix_jobs_status", "jobs", ["status"])


def _work() -> None:
    def of_place(table: str, *columns: sa.Column[Any]) -> None:
        op.create_table(table, _text("job_id", 32), _count("place"), *columns,
                        sa.PrimaryKeyConstraint("job_id", "place", name=f"pk_{table}"), _of_job(table))

    def content() -> sa.Column[bytes]:
        return sa.Column("body", sa.LargeBinary, nullable=False)

    of_place("job_items", _text("custom_id", 256, nullable=True), content())
    of_place("job_tasks", _text("claimed_by", 40, nullable=True), _count("attempts"), _count("faults"))
    op.create_index("ix_job_tasks_claimed_by", "job_tasks", ["claimed_by"])
    of_place("job_results", _count("status"), _text("code", 40, nullable=True), _text("request_id", 40), content())
    op.create_table(
        "job_lanes", _text("job_id", 32), _count("lane"), _text("worker", 32, nullable=True), _number("beat"),
        sa.PrimaryKeyConstraint("job_id", "lane", name="pk_job_lanes"), _of_job("job_lanes"),
    )
    op.create_index("ix_job_lanes_worker", "job_lanes", ["worker"])
    op.create_table(
        "job_shards", _text("job_id", 32), _text("name", 64), _number("bytes"), _text("sha256", 64),
        sa.Column("entries", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_job_shards"), _of_job("job_shards"),
    )
