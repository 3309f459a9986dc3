"""`strata jobs`: everybody's Jobs: how far they are, ending one, and running again what failed."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from frontend.accounts.service import find_account, list_accounts
from frontend.cli.shared import Columns, actor, as_json_option, open_database, show, show_one
from frontend.db import Database
from frontend.db.job_records import FINAL, UNFINISHED
from frontend.limits.store import connect
from frontend.settings import Settings

if TYPE_CHECKING:
    from frontend.jobs.service import Jobs, Shown


@dataclass(frozen=True)
class JobLine:
    """A Job as admins see it: without what is asked in it."""

    id: str
    email: str
    model: str
    status: str
    reason: str | None
    total: int
    completed: int
    failed: int
    retries: int
    charged: int
    held: int
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime


@click.group()
def jobs() -> None:
    """Jobs of everybody.

    \b
    Examples:
      strata jobs list --status running
      strata jobs show job_0123456789abcdefghij
      strata jobs retry job_0123456789abcdefghij
    """


@jobs.command("list")
@click.argument("email", required=False)
@click.option("--status", "statuses", multiple=True, type=click.Choice([*UNFINISHED, *FINAL]),
              help="Only these; can be given several times.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@as_json_option
def list_jobs(email: str | None, statuses: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List Jobs, the newest first; of one person, if EMAIL is given."""
    with _jobs() as (service, database):
        owner = find_account(database, email).id if email else None
        found = service.page(owner, limit, statuses=statuses)
        lines = _lines(database, found)
    show(lines, as_json, _COLUMNS)


@jobs.command("show")
@click.argument("job_id")
@as_json_option
def show_job(job_id: str, as_json: bool) -> None:
    """Show a Job, and how many of its requests failed for which reason."""
    with _jobs() as (service, database):
        shown = service.show(job_id, None)
        (line,) = _lines(database, [shown])
        errors = service.errors(job_id)
    show_one(line, as_json, _COLUMNS, errors=errors, error=shown.job.error)
    if not as_json:
        for code, number in errors.items():
            click.echo(f"{number} failed: {code}")
        if shown.job.error:
            click.echo(f"the Job failed: {shown.job.error['message']}")


@jobs.command()
@click.argument("job_id")
@as_json_option
def cancel(job_id: str, as_json: bool) -> None:
    """End a Job. What has finished stays, and stays charged."""
    with _jobs() as (service, database):
        (line,) = _lines(database, [service.cancel(job_id, None, actor())])
    show_one(line, as_json, _COLUMNS)


@jobs.command()
@click.argument("job_id")
@as_json_option
def retry(job_id: str, as_json: bool) -> None:
    """Run those requests of a Job that has ended again which failed or have no result."""
    with _jobs() as (service, database):
        service.retry(job_id, None, actor())
        (line,) = _lines(database, [service.show(job_id, None)])
    show_one(line, as_json, _COLUMNS)


@contextmanager
def _jobs() -> Iterator[tuple[Jobs, Database]]:
    from frontend.jobs.queue import Queue  # they know Inference, which hardly any other command needs
    from frontend.jobs.service import Jobs
    from frontend.jobs.storage import Storage

    settings = Settings.from_environment()
    redis = connect(settings.redis_url)
    try:
        with open_database() as database:
            yield Jobs(database, Storage(settings.job_storage), Queue(redis), settings.job_days), database
    finally:
        redis.close()


def _lines(database: Database, found: list[Shown]) -> list[JobLine]:
    emails = {account.id: account.email for account in list_accounts(database)}
    return [JobLine(
        job.id, emails[job.account_id], job.model, job.status, job.reason, job.total, job.completed, job.failed,
        job.retries, job.charged, shown.held, job.created_at, job.finished_at, job.expires_at)
        for shown in found for job in [shown.job]]


_COLUMNS: Columns[JobLine] = {
    "id": lambda job: job.id,
    "person": lambda job: job.email,
    "model": lambda job: job.model,
    "status": lambda job: job.status + (f" ({job.reason})" if job.reason else ""),
    "requests": lambda job: job.total,
    "completed": lambda job: job.completed,
    "failed": lambda job: job.failed,
    "retries": lambda job: job.retries,
    "charged": lambda job: job.charged,
    "held": lambda job: job.held,
    "created": lambda job: job.created_at,
    "finished": lambda job: job.finished_at,
}
