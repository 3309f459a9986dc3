"""A person's Jobs, for whoever shows them: submit, list, show, cancel, erase, errors by kind, results and shards.

`owner` is the account whose Jobs are meant, so that nobody learns of another's: a Job of somebody else's is as little
there as one that never was. None means everybody's, for admins.
"""
from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.keys import random_text
from frontend.db import Database, balances
from frontend.db import job_work as work
from frontend.db import jobs as rows
from frontend.db.job_records import FINAL, UNFINISHED, Job, Result, Shard
from frontend.db.jobs import ERASING, PREPARING
from frontend.errors import IdempotencyConflict, InvalidRequest, JobNotCancellable, NotFound, Unavailable
from frontend.jobs import results as reading
from frontend.jobs.erasing import erase
from frontend.jobs.lines import Submission
from frontend.jobs.queue import Queue
from frontend.jobs.shards import folder_of
from frontend.jobs.storage import Storage

#: Requests for each lane in which a Job is worked on, and the most lanes.
_PER_LANE, _MOST_LANES = 500, 8
#: Requests that are stored in one transaction.
_ROWS = 1000
#: Seconds in which a Job that is being stored must grow, or whoever stored it has died: longer than a transaction takes
#: or is waited for. And between two looks at it.
STILL, LOOK = 15.0, 0.1
#: Of a page after something that is not there, which would look like the end of the list.
NO_PLACE = "after is nothing of yours that is still there. Begin again without it."
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Owner:
    """Who submits: an account and the key that it sent, and how the Job is to be found again."""

    account_id: str
    key_id: str
    idempotency_key: str | None
    fingerprint: str


@dataclass(frozen=True)
class Shown:
    """A Job, and the tokens that its running requests hold."""

    job: Job
    held: int


class Jobs:
    """All of it. Threads may share it. What takes no owner expects that `show` has said whose the Job is."""

    def __init__(self, database: Database, storage: Storage, queue: Queue, keep_days: int) -> None:
        self._database, self._storage, self._queue = database, storage, queue
        self._keep = timedelta(days=keep_days)

    # Making

    def known(self, owner: Owner) -> Shown | None:
        """The Job that was submitted with the same idempotency key before, if any, once all of it is stored. One that
        died while it was stored is erased: nobody was told of it. Raises IdempotencyConflict where it was another
        submission, or Unavailable."""
        if owner.idempotency_key is None:
            return None
        stored, since = -1, time.monotonic()
        while True:
            with self._database.read() as connection:
                job = rows.job_of_key(connection, owner.account_id, owner.idempotency_key)
                now_stored = rows.stored(connection, job.id) if job is not None and job.status == PREPARING else 0
            if job is None:
                return None
            if job.fingerprint != owner.fingerprint:
                raise IdempotencyConflict("This Idempotency-Key was sent before, with another Job.")
            if job.status != PREPARING:
                return self._shown(job)
            if now_stored != stored:
                stored, since = now_stored, time.monotonic()
            elif time.monotonic() - since >= STILL:
                self._give_up(job.id)
            else:
                time.sleep(LOOK)

    def submit(
        self, owner: Owner, by: Actor, submission: Submission, batch: Mapping[str, Any] | None = None,
        within: timedelta | None = None,
    ) -> Shown:
        """Store a Job and let it begin. `within` is how long it may take, unless as long as it is kept.

        Raises IdempotencyConflict or Unavailable. Of several that come with one idempotency key, one is stored.
        """
        now = datetime.now(UTC)
        job = new_job(owner, submission.name, submission.model, submission.total, now, now + (within or self._keep),
                      batch)
        try:
            with self._database.write() as connection:
                rows.add_job(connection, job)
        except IntegrityError:
            known = self.known(owner)
            if known is None:
                raise Unavailable("The same Job is being erased. Try again in a moment.") from None
            return known
        try:
            items = submission.items()
            while some := list(islice(items, _ROWS)):  # short transactions, so that nobody waits long
                with self._database.write() as connection:
                    rows.add_items(connection, job.id, some)
            lanes = min(-(-submission.total // _PER_LANE), _MOST_LANES)
            with self._database.write() as connection:
                rows.add_lanes(connection, job.id, lanes)
                rows.move(connection, job.id, "queued", by=(PREPARING,))
                _note_submission(connection, by, job)
        except IntegrityError:
            raise Unavailable("The Job was erased while it was stored. Send it again.") from None
        except Exception:
            self._give_up(job.id)
            raise
        for lane in range(lanes):
            try:
                self._queue.send(job.id, lane)
            except Unavailable:  # a worker sees that the lane stands still
                _log.warning("job_not_sent", job_id=job.id)
                break
        return self.show(job.id, owner.account_id)

    def submit_failed(self, owner: Owner, by: Actor, batch: Mapping[str, Any], error: dict[str, str]) -> Shown:
        """Keep a batch of which nothing runs, since its file was wrong."""
        now = datetime.now(UTC)
        job = new_job(owner, None, "", 0, now, now + self._keep, batch)
        with self._database.write() as connection:
            rows.add_job(connection, job)
            rows.move(connection, job.id, "failed", by=(PREPARING,), at=now, error=error)
            _note_submission(connection, by, job)
        return self.show(job.id, owner.account_id)

    def _give_up(self, job_id: str) -> None:
        with self._database.write() as connection:
            moved = rows.move(connection, job_id, ERASING, by=(PREPARING,), idempotency_key=None)
        if moved:
            erase(self._database, self._storage, job_id)

    # Looking

    def page(
        self, owner: str | None, limit: int, after: str | None = None, statuses: Collection[str] = (),
        batches: bool = False,
    ) -> list[Shown]:
        """The newest Jobs, those that were made before the Job `after`. Raises InvalidRequest where that is not there.
        """
        with self._database.read() as connection:
            if after is not None and rows.job_of(connection, after, owner) is None:
                raise InvalidRequest(NO_PLACE, "after")
            found = rows.jobs_of(connection, owner, limit=limit, after=after, statuses=statuses, batches=batches)
            return [Shown(job, _held(connection, job)) for job in found]

    def show(self, job_id: str, owner: str | None) -> Shown:
        """One Job. Raises NotFound."""
        with self._database.read() as connection:
            job = rows.job_of(connection, job_id, owner)
            if job is None:
                raise NotFound(f"There is no Job {job_id!r}.")
            return Shown(job, _held(connection, job))

    def errors(self, job_id: str) -> dict[str, int]:
        """How many requests of a Job failed, by the code of the error."""
        with self._database.read() as connection:
            return work.errors_by_code(connection, job_id)

    def results(self, job_id: str, after: int = -1, failed: bool | None = None) -> Iterator[Result]:
        """The results of a Job in the order of submission, those after an index."""
        return reading.results(self._database, job_id, after, failed)

    def complete_through(self, job_id: str) -> int:
        """The index up to which every request of a Job has its result: none of those comes later."""
        with self._database.read() as connection:
            return work.complete_through(connection, job_id)

    def shards(self, job_id: str, after: str = "", limit: int | None = None) -> list[Shard]:
        """The shards of a Job's Activations, by name."""
        with self._database.read() as connection:
            return work.shards_of(connection, job_id, after, limit)

    def shard(self, job_id: str, name: str) -> Shard:
        """One of them. Raises NotFound."""
        with self._database.read() as connection:
            shard = work.shard_of(connection, job_id, name)
        if shard is None:
            raise NotFound(f"The Job {job_id!r} has no shard {name!r}.")
        return shard

    def read_shard(self, job_id: str, shard: Shard, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a shard from `start` up to `end`. Raises NotFound or Unavailable."""
        return self._storage.read(f"{folder_of(job_id)}/{shard.name}", start, end)

    # Changing

    def cancel(self, job_id: str, owner: str | None, by: Actor) -> Shown:
        """End a Job. Results that are there stay; what runs is stopped and costs nothing. Raises NotFound, or
        JobNotCancellable where it has ended."""
        now = datetime.now(UTC)
        with self._database.write() as connection:
            job = rows.job_of(connection, job_id, owner)
            if job is None:
                raise NotFound(f"There is no Job {job_id!r}.")
            if not rows.move(connection, job_id, "cancelled", by=(*UNFINISHED, PREPARING), at=now, reason=None,
                             needs=None, expires_at=now + self._keep):
                ended = rows.job_of(connection, job_id, owner)
                raise JobNotCancellable(f"The Job {job_id!r} has ended: it is {ended.status if ended else 'erased'}.")
            record(connection, by, Action.JOB_CANCEL, job_id, job.account_id)
        return self.show(job_id, owner)

    def delete(self, job_id: str, owner: str | None, by: Actor) -> None:
        """End a Job if it has not ended, and erase all that it has. Raises NotFound or Unavailable."""
        with self._database.write() as connection:
            job = rows.job_of(connection, job_id, owner)
            if job is None:
                raise NotFound(f"There is no Job {job_id!r}.")
            if rows.move(connection, job_id, ERASING, by=(*UNFINISHED, *FINAL, PREPARING), idempotency_key=None):
                record(connection, by, Action.JOB_ERASE, job_id, job.account_id)
        erase(self._database, self._storage, job_id)

    def retry(self, job_id: str, owner: str | None, by: Actor) -> int:
        """Run the requests of an ended Job again that failed or have no result. Returns how many. Raises NotFound, or
        JobNotCancellable where it has not ended."""
        now = datetime.now(UTC)
        with self._database.write() as connection:
            job = rows.job_of(connection, job_id, owner, lock=True)
            if job is None:
                raise NotFound(f"There is no Job {job_id!r}.")
            if not job.final:
                raise JobNotCancellable(f"The Job {job_id!r} has not ended: it is {job.status}.")
            work.retry_failed(connection, job_id)
            left = job.total - job.completed
            record(connection, by, Action.JOB_RETRY, job_id, job.account_id, {"requests": left})
            if left:
                rows.move(connection, job_id, "queued", by=FINAL, at=None, finished_at=None, error=None, error_bytes=0,
                          expires_at=now + self._keep)
        return left

    def _shown(self, job: Job) -> Shown:
        with self._database.read() as connection:
            return Shown(job, _held(connection, job))


def new_job(
    owner: Owner, name: str | None, model: str, total: int, now: datetime, expires_at: datetime,
    batch: Mapping[str, Any] | None,
) -> Job:
    """A Job that is being stored."""
    return Job(
        f"job_{random_text(20)}", owner.account_id, owner.key_id, name, model, PREPARING, None, None, None, now, None,
        None, expires_at, total, 0, 0, 0, 0, owner.idempotency_key, owner.fingerprint,
        dict(batch) if batch is not None else None, 0, 0)


def _note_submission(connection: Connection, by: Actor, job: Job) -> None:
    record(connection, by, Action.JOB_SUBMIT, job.id, job.account_id,
           {"key": job.key_id, "model": job.model, "requests": job.total})


def _held(connection: Any, job: Job) -> int:
    return sum(balances.holds_of(connection, f"{job.id}.").values()) if job.status in UNFINISHED else 0
