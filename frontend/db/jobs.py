"""The statements about Jobs as a whole: made, looked at, moved from one status to the next, erased."""
from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from frontend.db.job_records import FINAL, UNFINISHED, Item, Job
from frontend.db.job_tables import job_items, job_lanes, job_results, job_shards, job_sums, job_tasks, jobs
from frontend.db.tables import accounts

#: Jobs that people see. One that is still being stored looks queued.
PREPARING, ERASING = "preparing", "erasing"
_ORDER = (jobs.c.created_at, jobs.c.id)
_PARTS: tuple[Table, ...] = (job_tasks, job_results, job_items, job_shards, job_lanes)
#: The sums that outlive Jobs.
SUMS = ("completed", "failed", "retries")


def add_job(connection: Connection, job: Job) -> None:
    """Note a Job. Raises sqlalchemy's IntegrityError where the account has one of the same idempotency key."""
    values = {**vars(job), "error": _json(job.error), "batch": _json(job.batch)}
    connection.execute(insert(jobs).values(values))


def add_items(connection: Connection, job_id: str, items: Sequence[Item]) -> None:
    """Add requests to a Job that is being stored."""
    connection.execute(insert(job_items), [{"job_id": job_id, **vars(item)} for item in items])
    connection.execute(insert(job_tasks), [
        {"job_id": job_id, "place": item.place, "claimed_by": None, "attempts": 0, "faults": 0} for item in items])


def stored(connection: Connection, job_id: str) -> int:
    """How many requests of a Job that is being stored are there."""
    last = connection.execute(select(func.max(job_items.c.place)).where(job_items.c.job_id == job_id)).scalar()
    return 0 if last is None else int(last) + 1


def add_lanes(connection: Connection, job_id: str, lanes: int) -> None:
    """Let a Job be worked on in so many lanes."""
    connection.execute(insert(job_lanes), [
        {"job_id": job_id, "lane": lane, "worker": None, "beat": 0} for lane in range(lanes)])


def job_of(connection: Connection, job_id: str, account_id: str | None, lock: bool = False) -> Job | None:
    """A Job by its id, if it is the account's, or anybody's. With `lock` it stays so until the transaction ends."""
    query = select(*jobs.c).where(jobs.c.id == job_id, jobs.c.status != ERASING)
    if account_id is not None:
        query = query.where(jobs.c.account_id == account_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return _job(row) if row else None


def job_of_key(connection: Connection, account_id: str, idempotency_key: str) -> Job | None:
    """The Job that an account submitted with an idempotency key."""
    query = select(*jobs.c).where(jobs.c.account_id == account_id, jobs.c.idempotency_key == idempotency_key,
                                  jobs.c.status != ERASING)
    row = connection.execute(query).one_or_none()
    return _job(row) if row else None


def jobs_of(
    connection: Connection, account_id: str | None, *, limit: int, after: str | None = None,
    statuses: Collection[str] = (), batches: bool = False,
) -> list[Job]:
    """The newest Jobs of an account, or of all; those older than `after`; only batches, if wanted."""
    query = select(*jobs.c).where(jobs.c.status != ERASING).order_by(*(column.desc() for column in _ORDER)).limit(limit)
    if account_id is not None:
        query = query.where(jobs.c.account_id == account_id)
    if statuses:
        query = query.where(jobs.c.status.in_(statuses))
    if batches:
        query = query.where(jobs.c.batch.is_not(None))
    if after is not None:
        known = select(*_ORDER).where(jobs.c.id == after)
        if account_id is not None:
            known = known.where(jobs.c.account_id == account_id)
        place = connection.execute(known).one_or_none()
        if place is None:
            return []
        query = query.where(tuple_(*_ORDER) < tuple_(*place, types=[column.type for column in _ORDER]))
    return [_job(row) for row in connection.execute(query)]


def active_jobs(connection: Connection, statuses: Collection[str] = UNFINISHED) -> list[Job]:
    """The Jobs of some statuses whose people are not shut out, oldest first."""
    query = select(*jobs.c).join(accounts, accounts.c.id == jobs.c.account_id)
    query = query.where(jobs.c.status.in_(statuses), ~accounts.c.disabled).order_by(*_ORDER)
    return [_job(row) for row in connection.execute(query)]


def move(
    connection: Connection, job_id: str, to: str, *, by: Collection[str], at: datetime | None = None, **values: Any
) -> bool:
    """Give a Job another status, if it has one of `by`. `at` is when it ended. Whether it was moved.

    Of several who move it out of the same statuses at once, one gets True.
    """
    if at is not None:
        values["finished_at"] = at
    if "error" in values:
        values["error"] = _json(values["error"])
    change = update(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(by))
    return connection.execute(change.values(status=to, **values)).rowcount == 1


def begin(connection: Connection, job_id: str, at: datetime) -> bool:
    """A worker begins a Job, or goes on with it. False where there is nothing to do for it now."""
    started = func.coalesce(jobs.c.started_at, at, type_=jobs.c.started_at.type)
    change = update(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(("queued", "running")))
    return connection.execute(change.values(status="running", started_at=started)).rowcount == 1


def add_error_bytes(connection: Connection, job_id: str, size: int) -> None:
    """Let the file of a batch's errors be larger."""
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(error_bytes=jobs.c.error_bytes + size))


def is_open(connection: Connection, job_id: str) -> bool:
    """Whether a Job is to be worked on now: neither paused nor ended, and its person not shut out."""
    query = select(jobs.c.id).join(accounts, accounts.c.id == jobs.c.account_id)
    query = query.where(jobs.c.id == job_id, jobs.c.status.in_(("queued", "running")), ~accounts.c.disabled)
    return connection.execute(query).one_or_none() is not None


def overdue(connection: Connection, now: datetime) -> list[Job]:
    """The Jobs whose time is over."""
    query = select(*jobs.c).where(jobs.c.expires_at <= now, jobs.c.status.in_((*UNFINISHED, *FINAL)))
    return [_job(row) for row in connection.execute(query)]


def stuck(connection: Connection, status: str, before: datetime) -> list[str]:
    """The ids of Jobs that were made before a moment and still have a status that should not last."""
    query = select(jobs.c.id).where(jobs.c.status == status, jobs.c.created_at < before)
    return list(connection.execute(query).scalars())


def erase_parts(connection: Connection, job_id: str, most: int) -> bool:
    """Delete up to `most` rows of what a Job has. Whether there is nothing left."""
    for table in _PARTS:
        keys = [column for column in table.primary_key.columns if column.name != "job_id"]
        some = select(*keys).where(table.c.job_id == job_id).limit(most)
        doomed = delete(table).where(table.c.job_id == job_id, tuple_(*keys).in_(some)
                                     if len(keys) > 1 else keys[0].in_(some))
        if connection.execute(doomed).rowcount:
            return False
    return True


def erase(connection: Connection, job_id: str) -> None:
    """Delete a Job that has nothing left. What it counted is kept."""
    row = connection.execute(delete(jobs).where(jobs.c.id == job_id).returning(
        jobs.c.completed, jobs.c.failed, jobs.c.retries)).one_or_none()
    if row is None:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    for name, value in zip(SUMS, row, strict=True):
        statement = dialect.insert(job_sums).values(name=name, value=value)
        connection.execute(statement.on_conflict_do_update(
            index_elements=["name"], set_={"value": job_sums.c.value + statement.excluded.value}))


def _job(row: Row[Any]) -> Job:
    values = dict(row._mapping)
    for name in ("error", "batch"):
        values[name] = json.loads(values[name]) if values[name] is not None else None
    return Job(**values)


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value)
