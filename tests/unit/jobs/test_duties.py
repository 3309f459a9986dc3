"""What workers see to: Jobs whose time is over, and what was kept long enough."""
from __future__ import annotations

import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import Order, take_hold
from frontend.db import Database, balances
from frontend.db import job_work as work
from frontend.db import jobs as rows
from frontend.db.job_records import Item, Job, Lane, Result
from frontend.errors import NotFound
from frontend.jobs.attempt import hold_prefix
from frontend.jobs.duties import Duties
from frontend.jobs.files import Files, errors_of, output_of
from frontend.jobs.queue import Queue
from frontend.jobs.service import Jobs, Owner, new_job
from frontend.jobs.tools import Tools
from frontend.limits.store import connect
from frontend.settings import Settings
from tests.paid import until

NOW = datetime.now(UTC)


@pytest.fixture
def duties(tools: Tools, settings: Settings) -> Duties:
    return Duties(tools, Queue(connect(settings.redis_url)))


@pytest.fixture
def account(database: Database) -> str:
    return create_account(database, SYSTEM, "ada@example.org").id


def make(database: Database, account: str, expires_at: datetime, results: int) -> str:
    """A batch of three requests, so many of which have results, one of them an error."""
    owner, before = Owner(account, "key", None, "f"), NOW - timedelta(days=2)
    job = new_job(owner, None, "m", 3, before, expires_at, {"metadata": None})
    with database.write() as connection:
        rows.add_job(connection, job)
        rows.add_items(connection, job.id, [Item(place, f"r{place}", b"{}") for place in range(3)])
        rows.add_lanes(connection, job.id, 1)
        rows.move(connection, job.id, "queued", by=("preparing",))
        for place in range(results):
            code = None if place else "inference_error"
            one = Result(place, f"r{place}", 200, code, "req", b'{"error":{}}')
            assert work.finish_task(connection, job.id, one, 5, 0, 0)
    return job.id


def shown(database: Database, job_id: str) -> Job:
    with database.read() as connection:
        job = rows.job_of(connection, job_id, None)
    assert job is not None
    return job


def test_a_job_that_is_not_done_in_time_expires_and_keeps_what_it_has(
    database: Database, duties: Duties, tools: Tools, account: str
) -> None:
    late, early = make(database, account, NOW, 2), make(database, account, NOW + timedelta(hours=1), 2)
    duties.ends()
    job = shown(database, late)
    assert (job.status, job.completed, job.failed) == ("expired", 1, 1)
    assert job.finished_at is not None
    assert job.expires_at > NOW + timedelta(days=29)
    assert shown(database, early).status == "queued"
    files = Files(database, tools.storage, 30)
    assert output_of(job) is not None
    errors = errors_of(job)
    assert errors is not None
    told = [json.loads(line) for line in b"".join(files.read(errors, account)).splitlines()]
    assert [(line["custom_id"], (line["error"] or {}).get("code")) for line in told] == [
        ("r0", None), ("r2", "batch_expired")]


def test_what_was_kept_long_enough_is_erased(
    database: Database, duties: Duties, tools: Tools, account: str
) -> None:
    old = make(database, account, NOW + timedelta(hours=1), 3)
    with database.write() as connection:
        assert rows.move(connection, old, "completed", by=("queued",), at=NOW, expires_at=NOW)
    tools.storage.save(f"jobs/{old}/a.safetensors", io.BytesIO(b"x"))
    files = Files(database, tools.storage, 30)
    gone = files.add(account, SYSTEM, "a.jsonl", io.BytesIO(b"x"), timedelta(seconds=0))
    kept = files.add(account, SYSTEM, "b.jsonl", io.BytesIO(b"y"))
    duties.ends()
    with database.read() as connection:
        assert rows.job_of(connection, old, None) is None
        assert work.results_page(connection, old, -1, rows=9, size=9) == []
    for name in (f"jobs/{old}/a.safetensors", f"files/{gone.id}"):
        with pytest.raises(NotFound):
            list(tools.storage.read(name, 0, 1))
    with pytest.raises(NotFound):
        files.show(gone.id, account)
    assert b"".join(files.read(kept.id, account)) == b"y"


def test_the_lane_of_a_dead_worker_is_freed_with_what_it_had(
    database: Database, duties: Duties, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = make(database, account, NOW + timedelta(hours=1), 0)
    with database.write() as connection:
        assert work.take_lane(connection, job_id, 0, "dead")
        assert len(work.claim(connection, job_id, "dead", 0, 2)) == 2
    monkeypatch.setattr(duties._working, "_lease", 0.0)
    duties.lanes()
    with database.read() as connection:
        (lane,) = work.lanes(connection)
    assert lane.worker is None
    with database.write() as connection:
        assert [task.attempts for task in work.claim(connection, job_id, "alive", 0, 9)] == [2, 2, 1]
    assert shown(database, job_id).retries == 2


def test_a_lane_that_was_taken_for_us_without_our_hearing_of_it_is_freed(
    database: Database, duties: Duties, tools: Tools, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the connection broke once the database had taken it."""
    known, unknown = (make(database, account, NOW + timedelta(hours=1), 0) for _ in range(2))
    with database.write() as connection:
        for job_id in (known, unknown):
            assert work.take_lane(connection, job_id, 0, tools.worker)
    monkeypatch.setattr(duties._working, "_lease", 0.0)
    with tools.lanes.turn(known, 0):
        duties.beat()
        duties.lanes()
        with database.read() as connection:
            assert {lane.job_id: lane.worker for lane in work.lanes(connection)} == {known: tools.worker, unknown: None}
    assert tools.lanes.now() == []


def test_several_workers_that_see_the_same_end_count_what_is_late_once(
    database: Database, duties: Duties, tools: Tools, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = make(database, account, NOW, 2)
    together, look = threading.Barrier(2), rows.overdue

    def look_together(connection: Connection, now: datetime) -> list[Job]:
        found = look(connection, now)
        together.wait(10)
        return found

    monkeypatch.setattr(rows, "overdue", look_together)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: duties.ends(), range(2)))
    job = shown(database, late)
    errors = errors_of(job)
    assert errors is not None
    told = b"".join(Files(database, tools.storage, 30).read(errors, account)).splitlines(keepends=True)
    assert job.error_bytes == len(told[-1])  # what `make` stores counts nothing


def test_a_job_that_is_retried_while_its_time_ends_is_not_erased(
    database: Database, duties: Duties, tools: Tools, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, look = make(database, account, NOW + timedelta(hours=1), 3), rows.overdue
    with database.write() as connection:
        assert rows.move(connection, job_id, "completed", by=("queued",), at=NOW, expires_at=NOW)

    def look_and_be_late(connection: Connection, now: datetime) -> list[Job]:
        found = look(connection, now)
        Jobs(database, tools.storage, duties._messages, 30).retry(job_id, None, SYSTEM)
        return found

    monkeypatch.setattr(rows, "overdue", look_and_be_late)
    duties.ends()
    assert shown(database, job_id).status == "queued"
    with database.read() as connection:
        assert len(work.results_page(connection, job_id, -1, rows=9, size=9**9)) == 2


def test_freeing_a_lane_leaves_the_holds_of_those_who_go_on(
    database: Database, duties: Duties, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever claims what was put back holds tokens for the same requests."""
    give_grant(database, SYSTEM, account, 1000, "for tests")
    job_id = make(database, account, NOW + timedelta(hours=1), 0)

    def hold(name: str) -> str:
        order = Order(f"{hold_prefix(job_id, 0)}{name}", account, "key", "m", "/v1/jobs", None, Need(1, 1, 1))
        return take_hold(database, order).id

    with database.write() as connection:
        assert work.take_lane(connection, job_id, 0, "dead")
        work.claim(connection, job_id, "dead", 0, 1)
    of_the_dead = hold("dead")
    put_back, alive = work.put_all_back, []

    def put_back_and_go_on(connection: Connection, lane: Lane) -> list[tuple[int, int]]:
        back = put_back(connection, lane)
        take_over.start()
        until(lambda: database._writers._waiting)  # its turn comes next
        return back

    take_over = threading.Thread(target=lambda: alive.append(hold("alive")))
    monkeypatch.setattr(work, "put_all_back", put_back_and_go_on)
    monkeypatch.setattr(duties._working, "_lease", 0.0)
    duties.lanes()
    take_over.join()
    with database.read() as connection:
        assert list(balances.holds_of(connection, job_id)) == alive != [of_the_dead]
