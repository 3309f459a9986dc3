"""The tables of Jobs: what was asked, what is left to do and who does it, results, shards of Activations, and files."""
from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, String, Table, Text, text

from frontend.db.tables import Moment, accounts, metadata

jobs = Table(
    "jobs", metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("key_id", String(32), nullable=False),
    Column("name", String(256)),
    Column("model", String(64), nullable=False),
    # preparing (it is being stored), queued, running, paused, completed, failed, cancelled, expired,
    # or erasing (nobody sees it any more)
    Column("status", String(16), nullable=False),
    # Of a paused Job: budget_exceeded or spend_cap.
    Column("reason", String(32)),
    # Tokens that must be available before a Job that is paused for want of them goes on.
    Column("needs", BigInteger),
    # JSON: code and message of what failed the whole Job.
    Column("error", Text),
    Column("created_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    # While it is unfinished, when it ends as expired; then, when it is erased.
    Column("expires_at", Moment, nullable=False),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("charged", BigInteger, nullable=False),
    # Runs that were begun and had to be begun again.
    Column("retries", Integer, nullable=False),
    Column("idempotency_key", String(256)),
    # SHA-256 of what was submitted.
    Column("fingerprint", String(64), nullable=False),
    # JSON: what only a Job that was made as a batch has. NULL for all others.
    Column("batch", Text),
    # What the files of a batch's results have.
    Column("output_bytes", BigInteger, nullable=False),
    Column("error_bytes", BigInteger, nullable=False),
    Index("ix_jobs_account_id", "account_id", "created_at", "id"),
    Index("ix_jobs_idempotency_key", "account_id", "idempotency_key", unique=True),
    Index(None, "status"),
)

# The requests of a Job, as they were sent. They never change.
job_items = Table(
    "job_items", metadata,
    Column("job_id", String(32), ForeignKey(jobs.c.id), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("custom_id", String(256)),
    Column("body", LargeBinary, nullable=False),
)

# What is left to do: the row goes with the transaction that brings the result, which makes a second one impossible.
job_tasks = Table(
    "job_tasks", metadata,
    Column("job_id", String(32), ForeignKey(jobs.c.id), primary_key=True),
    Column("place", Integer, primary_key=True),
    # The lane that runs it now: a worker's name and the number of the lane.
    Column("claimed_by", String(40)),
    # How often it was begun, and how often it failed in a way that may be its own fault.
    Column("attempts", Integer, nullable=False),
    Column("faults", Integer, nullable=False),
    Index(None, "claimed_by"),
)

job_results = Table(
    "job_results", metadata,
    Column("job_id", String(32), ForeignKey(jobs.c.id), primary_key=True),
    Column("place", Integer, primary_key=True),
    # As the route's answer would have had it; and the error's code where it is one.
    Column("status", Integer, nullable=False),
    Column("code", String(40)),
    Column("request_id", String(40), nullable=False),
    # The completion, or {"error": …}, as JSON.
    Column("body", LargeBinary, nullable=False),
    Index("ix_job_results_failed", "job_id", "code",
          sqlite_where=text("code IS NOT NULL"), postgresql_where=text("code IS NOT NULL")),
)

# Each Job is worked on in so many lanes at once, each by one worker at a time.
job_lanes = Table(
    "job_lanes", metadata,
    Column("job_id", String(32), ForeignKey(jobs.c.id), primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("worker", String(32)),
    # Goes up while the worker lives.
    Column("beat", BigInteger, nullable=False),
    Index(None, "worker"),
)

job_shards = Table(
    "job_shards", metadata,
    Column("job_id", String(32), ForeignKey(jobs.c.id), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    # JSON: the tensors in it.
    Column("entries", Text, nullable=False),
)

# Files that people uploaded; their contents are in the storage.
files = Table(
    "files", metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", String(32), ForeignKey(accounts.c.id), nullable=False),
    Column("name", String(255), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("ix_files_account_id", "account_id", "created_at", "id"),
    Index(None, "expires_at"),
)

# Sums over Jobs that are erased, so that counters never go down.
job_sums = Table(
    "job_sums", metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
