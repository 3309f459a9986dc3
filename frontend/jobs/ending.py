"""What becomes of attempts in the database: each result with its charge and its Job's progress in one transaction."""
from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import orjson
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from frontend.budgets.holds import settle_in
from frontend.completions.choices import Choice
from frontend.db import balances as balance_rows
from frontend.db import job_work as rows
from frontend.db import jobs as job_rows
from frontend.db.job_records import Job, Result, Shard
from frontend.errors import Unavailable, error_body
from frontend.jobs.attempt import Outcome, Verdict, release
from frontend.jobs.results import batch_line
from frontend.jobs.shards import OpenShard, folder_of
from frontend.jobs.tools import Tools

#: Seconds between two tries of what the database must have.
RETRY = 0.5
_log = structlog.get_logger(__name__)
T = TypeVar("T")


class _NotOurs(Exception):
    """The Job has ended, another has brought the result, or its hold is gone: nothing of it may stay."""


class Ledger:
    """Brings the outcomes of one lane's attempts home."""

    def __init__(self, tools: Tools, job: Job, claim: str) -> None:
        self._tools, self._job, self._claim = tools, job, claim

    def answer(self, outcomes: list[Outcome], shard: OpenShard | None = None) -> None:
        """Store the completions of attempts that were answered; those with Activations are in the shard, which is
        written first. Raises Unavailable where the storage is away, and nothing is done then."""
        storage = self._tools.storage
        written = shard.write(storage, self._job.id) if shard else None
        results = [(outcome, _result(outcome, shard)) for outcome in outcomes]
        for outcome in outcomes:
            outcome.choices = None  # hundreds of megabytes, perhaps
        if written is None:
            for pair in results:
                self._commit([pair], None)
        elif not self._commit(results, written):  # none of them may be there without the shard, nor it without them
            storage.remove(f"{folder_of(self._job.id)}/{written.name}")

    def refuse(self, outcome: Outcome) -> None:
        """Store the error of an attempt as its result."""
        error = outcome.error
        assert error is not None
        item = outcome.task.item
        result = Result(item.place, item.custom_id, error.status, error.code, outcome.request_id,
                        orjson.dumps(error_body(error)))
        self._commit([(outcome, result)], None)

    def put_back(self, outcome: Outcome) -> None:
        """Let a task be begun again, and remember what the attempt says of it."""
        task = outcome.task
        faults = task.faults + (outcome.verdict is Verdict.FAULTY)
        # What we did not let run to its end says nothing about the request.
        attempts = task.attempts - (outcome.verdict not in (Verdict.FAULTY, Verdict.BROKEN_OFF))

        def write(connection: Connection) -> None:
            ours = rows.put_back(connection, self._job.id, task.item.place, self._claim, attempts, faults)
            if ours and outcome.hold_id is not None and job_rows.is_open(connection, self._job.id):
                rows.count_retries(connection, self._job.id, 1)

        self._write(write)

    def pause(self, outcome: Outcome) -> bool:
        """Pause the Job where its tokens, those that are held included, can't pay for an attempt, or where the Spend
        limit is reached. Whether it is paused."""
        spend = outcome.verdict is Verdict.NO_SPEND

        def write(connection: Connection) -> bool:
            balance = balance_rows.balance_of(connection, self._job.account_id)
            if not spend and balance.available + balance.held >= outcome.needs:
                return False  # others hold what it needs, and may not use it
            return job_rows.move(connection, self._job.id, "paused", by=("queued", "running"),
                                 reason="spend_cap" if spend else "budget_exceeded",
                                 needs=None if spend else outcome.needs)

        return self._write(write)

    def _commit(self, results: list[tuple[Outcome, Result]], shard: Shard | None) -> bool:
        """Everything of these results in one transaction; whether it was done. What was held is given back if not."""

        def write(connection: Connection) -> None:
            for outcome, result in results:
                charged = self._charge(connection, outcome)
                line = sum(map(len, batch_line(self._job.id, result))) if self._job.batch is not None else 0
                good = result.code is None
                if not rows.finish_task(connection, self._job.id, result, charged, line * good, line * (not good)):
                    raise _NotOurs
            if shard is not None:
                rows.add_shard(connection, self._job.id, shard)
            now = datetime.now(UTC)
            rows.complete_if_done(connection, self._job.id, now, self._kept_until(now))

        try:
            self._write(write)
        except (_NotOurs, IntegrityError):
            _log.info("job_result_dropped", job_id=self._job.id, indices=[result.place for _, result in results])
            for outcome, _ in results:
                if outcome.hold_id is not None:
                    release(self._tools, outcome.hold_id)
                self.put_back(outcome)  # if it still is ours
            return False
        for outcome, _ in results:
            if outcome.hold_id is not None:
                self._tools.leases.forget(outcome.hold_id)
        return True

    def _charge(self, connection: Connection, outcome: Outcome) -> int:
        if outcome.verdict is not Verdict.ANSWERED:
            return 0
        assert outcome.hold_id is not None
        settled = settle_in(connection, outcome.hold_id, outcome.ending())
        if settled is None:
            raise _NotOurs  # the keeper has taken us for dead; without its charge there is no result
        return settled.record.charged

    def _write(self, work: Callable[[Connection], T]) -> T:
        """Do it in one transaction, again until the database answers."""
        while True:
            try:
                with self._tools.database.write() as connection:
                    return work(connection)
            except Unavailable:
                if self._tools.ended.wait(RETRY):
                    raise

    def _kept_until(self, now: datetime) -> datetime:
        return now + timedelta(days=self._tools.settings.job_days)


def _result(outcome: Outcome, shard: OpenShard | None) -> Result:
    assert outcome.run is not None
    assert outcome.choices is not None
    run, item = outcome.run, outcome.task.item

    def elsewhere(choice: Choice) -> dict[str, str]:
        assert shard is not None
        return {"shard": shard.name, "tensor": OpenShard.tensor(item, choice)}

    body = b"".join(run.answer.body(outcome.choices, run.usage(), elsewhere if shard else None))
    return Result(item.place, item.custom_id, 200, None, outcome.request_id, body)
