"""A Job that is submitted is stored whole or not at all, whoever dies meanwhile and however often it is sent."""
from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.db import Database
from frontend.db import job_work as work
from frontend.db import jobs as rows
from frontend.db.job_records import Item
from frontend.errors import IdempotencyConflict, NotFound, Unavailable
from frontend.jobs import service
from frontend.jobs.lines import Submission
from frontend.jobs.queue import Queue
from frontend.jobs.service import Jobs, Owner, new_job
from frontend.jobs.storage import Storage
from frontend.limits.store import connect
from frontend.settings import Settings
from tests.paid import until

NOW = datetime.now(UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, database_url: str) -> str:
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgresql" else database_url


@pytest.fixture
def owner(database: Database) -> Owner:
    return Owner(create_account(database, SYSTEM, "ada@example.org").id, "key", "once", "f")


@pytest.fixture
def jobs(database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """With a Redis that is away, for which nobody waits."""
    monkeypatch.setattr("frontend.limits.store.PATIENCE", 0.0)
    return Jobs(database, Storage(settings.job_storage), Queue(connect(settings.redis_url)), 30)


@dataclass
class Slow(Submission):
    """A submission of which half is stored before it is let go on."""

    go_on: threading.Event = field(default_factory=threading.Event)

    def items(self) -> Iterator[Item]:
        for item in super().items():
            if item.place == service._ROWS:
                assert self.go_on.wait(20)
            yield item


def submission(total: int = 3) -> Slow:
    return Slow(io.BytesIO(b'null\n{"prompt":"a"}\n' * total), None, "m", total)


def tasks(database: Database, job_id: str) -> int:
    with database.write() as connection:
        return len(work.claim(connection, job_id, "w", 0, 10_000))


def test_what_died_while_it_was_stored_is_stored_anew_when_it_is_sent_again(
    database: Database, jobs: Jobs, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STILL", 0.2)
    dead = new_job(owner, None, "m", 3, NOW, NOW + timedelta(days=1), None)
    with database.write() as connection:
        rows.add_job(connection, dead)
        rows.add_items(connection, dead.id, [Item(0, None, b"{}")])
    with pytest.raises(IdempotencyConflict):
        jobs.known(Owner(owner.account_id, "key", "once", "another"))
    assert jobs.known(owner) is None
    again = jobs.submit(owner, SYSTEM, submission()).job
    assert (again.status, tasks(database, again.id)) == ("queued", 3)
    assert [shown.job.id for shown in jobs.page(owner.account_id, 9)] == [again.id]


def test_who_sends_it_again_hears_of_it_once_it_is_stored(database: Database, jobs: Jobs, owner: Owner) -> None:
    first = submission(service._ROWS + 1)
    with ThreadPoolExecutor(2) as pool:
        storing = pool.submit(jobs.submit, owner, SYSTEM, first)
        until(lambda: jobs.page(owner.account_id, 1))
        again = pool.submit(jobs.known, owner)
        with pytest.raises(TimeoutError):
            again.result(0.3)
        first.go_on.set()
        known = again.result()
    assert known is not None
    assert (known.job.id, known.job.status) == (storing.result().job.id, "queued")
    assert tasks(database, known.job.id) == service._ROWS + 1


def test_a_job_that_is_erased_while_it_is_stored_is_not_there(jobs: Jobs, owner: Owner) -> None:
    first = submission(service._ROWS + 1)
    with ThreadPoolExecutor(1) as pool:
        storing = pool.submit(jobs.submit, owner, SYSTEM, first)
        until(lambda: jobs.page(owner.account_id, 1))
        jobs.delete(jobs.page(owner.account_id, 1)[0].job.id, owner.account_id, SYSTEM)
        first.go_on.set()
        with pytest.raises((Unavailable, NotFound)):
            storing.result()
    assert jobs.page(owner.account_id, 9) == []
    assert jobs.known(owner) is None
