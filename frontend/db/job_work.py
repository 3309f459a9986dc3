"""The statements of those who work on Jobs: lanes and their leases, tasks that are claimed, results that come once."""
from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, delete, func, insert, select, tuple_, update

from frontend.db.job_records import UNFINISHED, Item, Lane, Result, Shard, Task, claim_of
from frontend.db.job_tables import job_items, job_lanes, job_results, job_shards, job_tasks, jobs

_OF_ITEM = and_(job_items.c.job_id == job_results.c.job_id, job_items.c.place == job_results.c.place)


# Lanes

def lanes(connection: Connection) -> list[Lane]:
    """The lanes of all Jobs that are worked on, and those of others that somebody still has."""
    query = select(*job_lanes.c).join(jobs, jobs.c.id == job_lanes.c.job_id)
    query = query.where(jobs.c.status.in_(("queued", "running")) | job_lanes.c.worker.is_not(None))
    return [Lane(**row._mapping) for row in connection.execute(query.order_by(jobs.c.created_at, job_lanes.c.lane))]


def take_lane(connection: Connection, job_id: str, lane: int, worker: str) -> bool:
    """Take a lane that nobody has. Whether it was taken."""
    change = update(job_lanes).where(job_lanes.c.job_id == job_id, job_lanes.c.lane == lane,
                                     job_lanes.c.worker.is_(None))
    return connection.execute(change.values(worker=worker, beat=job_lanes.c.beat + 1)).rowcount == 1


def beat(connection: Connection, worker: str, lanes: Collection[tuple[str, int]]) -> None:
    """Say that a worker lives, for those of some lanes that are its."""
    among = tuple_(job_lanes.c.job_id, job_lanes.c.lane).in_(lanes)
    change = update(job_lanes).where(job_lanes.c.worker == worker, among)
    connection.execute(change.values(beat=job_lanes.c.beat + 1))


def leave_lane(connection: Connection, lane: Lane, if_still: bool = False) -> bool:
    """Take a lane from its worker; with `if_still` only if its beat is what it was. Whether that was done."""
    change = update(job_lanes).where(job_lanes.c.job_id == lane.job_id, job_lanes.c.lane == lane.lane,
                                     job_lanes.c.worker == lane.worker)
    if if_still:
        change = change.where(job_lanes.c.beat == lane.beat)
    return connection.execute(change.values(worker=None, beat=job_lanes.c.beat + 1)).rowcount == 1


def has_lane(connection: Connection, lane: Lane) -> bool:
    """Whether a lane still is its worker's."""
    query = select(job_lanes.c.lane).where(job_lanes.c.job_id == lane.job_id, job_lanes.c.lane == lane.lane,
                                           job_lanes.c.worker == lane.worker)
    return connection.execute(query).one_or_none() is not None


def crowd(connection: Connection) -> list[tuple[str, str, str]]:
    """Model, account and job of every lane that somebody works in."""
    query = select(jobs.c.model, jobs.c.account_id, jobs.c.id).join(job_lanes, jobs.c.id == job_lanes.c.job_id)
    return [(model, account, job) for model, account, job in
            connection.execute(query.where(job_lanes.c.worker.is_not(None), jobs.c.status == "running"))]


# Tasks

def claim(connection: Connection, job_id: str, worker: str, lane: int, most: int) -> list[Task]:
    """Claim the next tasks of a Job, up to `most`, in the order of their places."""
    free = select(job_tasks.c.place).where(job_tasks.c.job_id == job_id, job_tasks.c.claimed_by.is_(None))
    free = free.order_by(job_tasks.c.place).limit(most).with_for_update(skip_locked=True)
    places = list(connection.execute(free).scalars())
    if not places:
        return []
    ours = and_(job_tasks.c.job_id == job_id, job_tasks.c.place.in_(places))
    connection.execute(update(job_tasks).where(ours).values(
        claimed_by=claim_of(worker, lane), attempts=job_tasks.c.attempts + 1))
    query = select(*(column for column in job_items.c if column.name != "job_id"),
                   job_tasks.c.attempts, job_tasks.c.faults)
    same = and_(job_tasks.c.job_id == job_items.c.job_id, job_tasks.c.place == job_items.c.place)
    query = query.join(job_tasks, same)
    return [Task(Item(row.place, row.custom_id, row.body), row.attempts, row.faults)
            for row in connection.execute(query.where(ours).order_by(job_items.c.place))]


def put_back(connection: Connection, job_id: str, place: int, claim: str, attempts: int, faults: int) -> bool:
    """Give a task back, with these counts. False where it is not ours any more."""
    change = update(job_tasks).where(job_tasks.c.job_id == job_id, job_tasks.c.place == place,
                                     job_tasks.c.claimed_by == claim)
    return connection.execute(change.values(claimed_by=None, attempts=attempts, faults=faults)).rowcount == 1


def put_all_back(connection: Connection, lane: Lane) -> list[tuple[int, int]]:
    """Give back all that a lane has claimed. Returns the places, and how often each was begun."""
    change = update(job_tasks).where(job_tasks.c.job_id == lane.job_id, job_tasks.c.claimed_by == lane.claim)
    rows = connection.execute(change.values(claimed_by=None).returning(job_tasks.c.place, job_tasks.c.attempts))
    return [(place, attempts) for place, attempts in rows]


def count_retries(connection: Connection, job_id: str, number: int) -> None:
    """Note that so many runs were begun in vain."""
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(retries=jobs.c.retries + number))


def left_page(connection: Connection, job_id: str, after: int, most: int) -> list[tuple[int, str | None]]:
    """Places and custom ids of the next requests without a result."""
    same = and_(job_tasks.c.job_id == job_items.c.job_id, job_tasks.c.place == job_items.c.place)
    query = select(job_items.c.place, job_items.c.custom_id).join(job_tasks, same)
    query = query.where(job_tasks.c.job_id == job_id, job_tasks.c.place > after).order_by(job_tasks.c.place).limit(most)
    return [(row.place, row.custom_id) for row in connection.execute(query)]


def has_free_tasks(connection: Connection, job_id: str) -> bool:
    """Whether anything of a Job is neither done nor claimed."""
    query = select(job_tasks.c.place).where(job_tasks.c.job_id == job_id, job_tasks.c.claimed_by.is_(None)).limit(1)
    return connection.execute(query).one_or_none() is not None


# Results

def finish_task(connection: Connection, job_id: str, result: Result, charged: int, output: int, error: int) -> bool:
    """Put a result in the place of its task, and count it. False, and nothing done, where the Job has ended or another
    has brought it. `output` and `error` are what the files of a batch grow by."""
    good, bad = int(result.code is None), int(result.code is not None)
    counted = update(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(UNFINISHED)).values(
        completed=jobs.c.completed + good, failed=jobs.c.failed + bad, charged=jobs.c.charged + charged,
        output_bytes=jobs.c.output_bytes + output, error_bytes=jobs.c.error_bytes + error)
    # The Job's row first: whoever cancels it waits for us, or we see that it is cancelled.
    if not connection.execute(counted).rowcount:
        return False
    done = delete(job_tasks).where(job_tasks.c.job_id == job_id, job_tasks.c.place == result.place)
    if not connection.execute(done).rowcount:
        return False
    connection.execute(insert(job_results).values(
        job_id=job_id, place=result.place, status=result.status, code=result.code, request_id=result.request_id,
        body=result.body))
    return True


def complete_if_done(connection: Connection, job_id: str, now: datetime, expires_at: datetime) -> bool:
    """End a Job whose requests all have results. Whether it ended by that."""
    change = update(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(UNFINISHED),
                                jobs.c.completed + jobs.c.failed == jobs.c.total)
    done = change.values(status="completed", reason=None, needs=None, finished_at=now, expires_at=expires_at)
    return connection.execute(done).rowcount == 1


def results_page(
    connection: Connection, job_id: str, after: int, *, rows: int, size: int, failed: bool | None = None
) -> list[Result]:
    """The next results by place: at most so many, and no more bytes of bodies than `size` beyond the first's.

    `failed`: only those that failed, or only those that did not.
    """
    columns = (job_results.c.place, job_items.c.custom_id, job_results.c.status, job_results.c.code,
               job_results.c.request_id)
    query = select(*columns, func.length(job_results.c.body).label("bytes")).join(job_items, _OF_ITEM)
    query = query.where(job_results.c.job_id == job_id, job_results.c.place > after)
    if failed is not None:
        query = query.where(job_results.c.code.is_not(None) if failed else job_results.c.code.is_(None))
    heads: list[Any] = []
    whole = 0
    for row in connection.execute(query.order_by(job_results.c.place).limit(rows)):
        whole += row.bytes
        if heads and whole > size:
            break
        heads.append(row)
    if not heads:
        return []
    wanted = select(job_results.c.place, job_results.c.body).where(
        job_results.c.job_id == job_id, job_results.c.place.in_([row.place for row in heads]))
    bodies = {row.place: row.body for row in connection.execute(wanted)}
    return [Result(row.place, row.custom_id, row.status, row.code, row.request_id, bodies[row.place]) for row in heads]


def complete_through(connection: Connection, job_id: str) -> int:
    """The largest place up to which every request has a result; −1 where the first has none."""
    first = connection.execute(select(func.min(job_tasks.c.place)).where(job_tasks.c.job_id == job_id)).scalar()
    if first is not None:
        return int(first) - 1
    last = connection.execute(select(func.max(job_items.c.place)).where(job_items.c.job_id == job_id)).scalar()
    return -1 if last is None else int(last)


def errors_by_code(connection: Connection, job_id: str) -> dict[str, int]:
    """How many requests of a Job failed for each reason."""
    query = select(job_results.c.code, func.count()).where(
        job_results.c.job_id == job_id, job_results.c.code.is_not(None)).group_by(job_results.c.code)
    return {row[0]: row[1] for row in connection.execute(query.order_by(job_results.c.code))}


def retry_failed(connection: Connection, job_id: str) -> int:
    """Make tasks of the results that are errors. Returns how many."""
    failed = delete(job_results).where(job_results.c.job_id == job_id, job_results.c.code.is_not(None))
    places = list(connection.execute(failed.returning(job_results.c.place)).scalars())
    if places:
        connection.execute(insert(job_tasks), [
            {"job_id": job_id, "place": place, "claimed_by": None, "attempts": 0, "faults": 0} for place in places])
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(
            failed=jobs.c.failed - len(places), error_bytes=0, retries=jobs.c.retries + len(places)))
    return len(places)


# Shards

def add_shard(connection: Connection, job_id: str, shard: Shard) -> None:
    """Note a shard, whose file is in the storage."""
    connection.execute(insert(job_shards).values(
        job_id=job_id, name=shard.name, bytes=shard.bytes, sha256=shard.sha256, entries=json.dumps(shard.entries)))


def shards_of(connection: Connection, job_id: str, after: str = "", limit: int | None = None) -> list[Shard]:
    """A Job's shards by name, those after a name."""
    query = select(*job_shards.c).where(job_shards.c.job_id == job_id, job_shards.c.name > after)
    return list(_shards(connection, query.order_by(job_shards.c.name).limit(limit)))


def shard_of(connection: Connection, job_id: str, name: str) -> Shard | None:
    """One shard."""
    query = select(*job_shards.c).where(job_shards.c.job_id == job_id, job_shards.c.name == name)
    return next(_shards(connection, query), None)


def _shards(connection: Connection, query: Select[Any]) -> Iterator[Shard]:
    for row in connection.execute(query):
        yield Shard(row.name, row.bytes, row.sha256, json.loads(row.entries))
