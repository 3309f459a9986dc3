"""What becomes of a request that is no answer: begun again, later or not at all; and never held for ever."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from redis.exceptions import ConnectionError as RedisAway

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import Order, balance, take_hold
from frontend.db import Database
from frontend.db import jobs as rows
from frontend.db.job_records import Item, Job, Lane, Task
from frontend.errors import ModelNotFound, Unavailable
from frontend.jobs import attempt
from frontend.jobs.attempt import MOST_FAULTS, Attempt, Outcome, Verdict
from frontend.jobs.governor import Governor
from frontend.jobs.lane import LaneWork
from frontend.jobs.queue import Queue
from frontend.jobs.service import Owner, new_job
from frontend.jobs.tools import Tools
from frontend.limits.store import connect

BODY = b'{"model": "tiny-llama", "prompt": "a", "max_tokens": 1}'


@pytest.fixture
def job(database: Database) -> Job:
    account, now = create_account(database, SYSTEM, "ada@example.org").id, datetime.now(UTC)
    give_grant(database, SYSTEM, account, 100, "for tests")
    job = new_job(Owner(account, "key", None, "f"), None, "tiny-llama", 1, now, now + timedelta(days=1), None)
    with database.write() as connection:
        rows.add_job(connection, job)
        rows.add_items(connection, job.id, [Item(0, None, BODY)])
        rows.move(connection, job.id, "running", by=("preparing",))
    return job


@pytest.mark.parametrize(("raised", "faults", "verdict"), [
    (RuntimeError("a bug that one prompt finds"), 0, Verdict.FAULTY),
    (RuntimeError("a bug that one prompt finds"), MOST_FAULTS - 1, Verdict.REFUSED),
    (Unavailable("away"), MOST_FAULTS - 1, Verdict.LATER),
    (RedisAway("away"), MOST_FAULTS - 1, Verdict.LATER),
    (ModelNotFound("not served now"), MOST_FAULTS - 1, Verdict.LATER),
])
def test_what_fails_before_it_has_a_place(
    tools: Tools, job: Job, monkeypatch: pytest.MonkeyPatch, raised: Exception, faults: int, verdict: Verdict
) -> None:
    """A request that can never be planned must not be begun again for ever."""

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(attempt, "plan_request", fail)
    assert Attempt(tools, job, Task(Item(0, None, BODY), 1, faults)).work().verdict is verdict


def test_an_answer_that_cant_be_brought_home_holds_nothing(tools: Tools, job: Job, database: Database) -> None:
    hold = take_hold(database, Order(f"{job.id}.0.a", job.account_id, "key", "tiny-llama", "/v1/jobs", None,
                                     Need(1, 1, 1)))
    tools.leases.keep(hold.id, lambda: None, lambda: None)
    lane = LaneWork(tools, Governor(database, tools.places), Queue(connect(tools.settings.redis_url)), job,
                    Lane(job.id, 0, tools.worker, 0))
    task = Task(Item(0, None, BODY), 1, 0)
    lane._flying[0] = Attempt(tools, job, task)
    lane._landed.put(Outcome(task, Verdict.ANSWERED, "req", hold_id=hold.id))  # without what was answered
    with pytest.raises(AssertionError):
        lane._land()
    assert balance(database, job.account_id).held == 0
    assert tools.leases._running == {}
