"""The statements behind the metrics of Jobs."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from frontend.db.job_records import UNFINISHED
from frontend.db.job_tables import job_sums, job_tasks, jobs
from frontend.db.jobs import SUMS


@dataclass(frozen=True)
class JobFigures:
    """Unfinished Jobs by status; requests that wait and that run; requests that ended since ever and runs that were in
    vain, those of erased Jobs included; and since when the Job has waited that has waited longest."""

    jobs: Mapping[str, int]
    waiting: int
    running: int
    completed: int
    failed: int
    retries: int
    oldest: datetime | None


def job_figures(connection: Connection) -> JobFigures:
    """All of them, of one moment."""
    by_status = select(jobs.c.status, func.count(), func.sum(jobs.c.total - jobs.c.completed - jobs.c.failed))
    rows = connection.execute(by_status.where(jobs.c.status.in_(UNFINISHED)).group_by(jobs.c.status)).all()
    running = select(func.count()).where(job_tasks.c.claimed_by.is_not(None))
    now_running: int = connection.execute(running).scalar_one()
    sums = {row.name: int(row.value) for row in connection.execute(select(*job_sums.c))}
    columns = [func.coalesce(func.sum(jobs.c[name]), 0) for name in SUMS]
    here = connection.execute(select(*columns)).one()
    completed, failed, retries = (sums.get(name, 0) + int(value) for name, value in zip(SUMS, here, strict=True))
    oldest = connection.execute(select(func.min(jobs.c.created_at)).where(jobs.c.status == "queued")).scalar()
    return JobFigures({status: number for status, number, _ in rows}, sum(int(left) for *_, left in rows) - now_running,
                      now_running, completed, failed, retries, oldest)
