"""Who works on what, in the database alone: each task for one lane, each result once, whatever comes at once."""
from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account, find_account, set_disabled
from frontend.db import Database
from frontend.db import job_work as work
from frontend.db import jobs as rows
from frontend.db.job_figures import job_figures
from frontend.db.job_records import UNFINISHED, Item, Result, Shard
from frontend.jobs.files import joined
from frontend.jobs.results import batch_line, job_line, results
from frontend.jobs.service import Owner, new_job
from frontend.jobs.storage import PART

NOW = datetime.now(UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, database_url: str) -> str:
    return str(request.getfixturevalue("postgres").new_database()) if request.param == "postgresql" else database_url


@pytest.fixture
def account(database: Database) -> str:
    return create_account(database, SYSTEM, "ada@example.org").id


def make(database: Database, account: str, total: int, lanes: int = 2, **changes: object) -> str:
    job = new_job(Owner(account, "key", None, "f"), None, "m", total, NOW, NOW + timedelta(days=1), None)
    with database.write() as connection:
        rows.add_job(connection, job)
        rows.add_items(connection, job.id, [Item(place, f"r{place}", b"{}") for place in range(total)])
        rows.add_lanes(connection, job.id, lanes)
        rows.move(connection, job.id, "queued", by=("preparing",), **changes)
    return job.id


def result(place: int, code: str | None = None) -> Result:
    body = b'{"error":{"code":"x"}}' if code else b'{"id":"cmpl"}'
    return Result(place, f"r{place}", 400 if code else 200, code, "req_1", body)


def finish(database: Database, job_id: str, one: Result) -> bool:
    with database.write() as connection:
        done = work.finish_task(connection, job_id, one, charged=5, output=0, error=0)
        if done:
            work.complete_if_done(connection, job_id, NOW, NOW)
        else:
            connection.rollback()
    return done


def shown(database: Database, job_id: str):  # type: ignore[no-untyped-def]
    with database.read() as connection:
        return rows.job_of(connection, job_id, None)


def test_lanes_that_claim_at_once_get_each_task_once(database: Database, account: str) -> None:
    job_id = make(database, account, 200)

    def claim_all(lane: int) -> list[int]:
        mine: list[int] = []
        while True:
            with database.write() as connection:
                tasks = work.claim(connection, job_id, f"worker{lane}", lane, 7)
            if not tasks:
                return mine
            mine += [task.item.place for task in tasks]

    with ThreadPoolExecutor(4) as pool:
        claimed = [place for mine in pool.map(claim_all, range(4)) for place in mine]
    assert sorted(claimed) == list(range(200))


def test_a_result_comes_once(database: Database, account: str) -> None:
    job_id = make(database, account, 3)
    with ThreadPoolExecutor(6) as pool:
        came = list(pool.map(lambda number: finish(database, job_id, result(number % 3)), range(12)))
    assert sum(came) == 3
    job = shown(database, job_id)
    assert (job.status, job.completed, job.failed, job.charged) == ("completed", 3, 0, 15)
    assert not finish(database, job_id, result(0))


def test_cancel_and_the_last_result_at_once(database: Database, account: str) -> None:
    seen: Counter[str] = Counter()
    for _ in range(20):
        job_id = make(database, account, 1)
        together = threading.Barrier(2)

        def cancel(job_id: str = job_id, together: threading.Barrier = together) -> bool:
            together.wait()
            with database.write() as connection:
                return rows.move(connection, job_id, "cancelled", by=UNFINISHED, at=NOW)

        def end(job_id: str = job_id, together: threading.Barrier = together) -> bool:
            together.wait()
            return finish(database, job_id, result(0))

        with ThreadPoolExecutor(2) as pool:
            cancelled, came = (one.result() for one in (pool.submit(cancel), pool.submit(end)))
        job = shown(database, job_id)
        assert cancelled != came
        assert job.status == ("cancelled" if cancelled else "completed")
        assert (job.completed, job.charged) == ((1, 5) if came else (0, 0))
        seen[job.status] += 1


def test_a_lane_is_one_workers(database: Database, account: str) -> None:
    job_id = make(database, account, 3, lanes=1)
    with database.write() as connection:
        assert work.take_lane(connection, job_id, 0, "one")
        assert not work.take_lane(connection, job_id, 0, "other")
        assert [task.attempts for task in work.claim(connection, job_id, "one", 0, 2)] == [1, 1]
        (lane,) = work.lanes(connection)
        work.beat(connection, "one", [])
        assert work.lanes(connection) == [lane]
        work.beat(connection, "one", [(job_id, 0), (job_id, 7)])
        assert not work.leave_lane(connection, lane, if_still=True)
        (lane,) = work.lanes(connection)
        assert work.leave_lane(connection, lane, if_still=True)
        assert work.put_all_back(connection, lane) == [(0, 1), (1, 1)]
        assert [task.attempts for task in work.claim(connection, job_id, "other", 0, 3)] == [2, 2, 1]


def test_a_disabled_person_has_no_job_worked_on(database: Database, account: str) -> None:
    job_id = make(database, account, 1)
    ada = find_account(database, "ada@example.org")
    with database.read() as connection:
        assert rows.is_open(connection, job_id)
    set_disabled(database, SYSTEM, ada, True)
    with database.read() as connection:
        assert not rows.is_open(connection, job_id)
        assert rows.active_jobs(connection) == []


def test_pages_of_results_are_bounded_by_bytes(database: Database, account: str) -> None:
    job_id = make(database, account, 30)
    large = b'"' + b"x" * 300_000 + b'"'
    for place in range(30):
        one = result(place, "inference_error" if place % 10 == 9 else None)
        finish(database, job_id, one if one.code else replace(one, body=large))
    with database.read() as connection:
        page = work.results_page(connection, job_id, -1, rows=100, size=10**6)
        assert [one.place for one in page] == [0, 1, 2]
        assert work.errors_by_code(connection, job_id) == {"inference_error": 3}
        assert work.complete_through(connection, job_id) == 29
    assert [one.place for one in results(database, job_id)] == list(range(30))
    assert [one.place for one in results(database, job_id, failed=True)] == [9, 19, 29]
    assert [one.place for one in results(database, job_id, after=27)] == [28, 29]


def test_lines_say_what_came() -> None:
    assert b"".join(job_line(result(2))) == b'{"custom_id":"r2","index":2,"status":200,"response":{"id":"cmpl"}}\n'
    assert b"".join(job_line(result(2, "x"))) == b'{"custom_id":"r2","index":2,"status":400,"error":{"code":"x"}}\n'
    assert b"".join(batch_line("job_7", result(2))) == (
        b'{"id":"batch_req_7_2","custom_id":"r2","response":{"status_code":200,"request_id":"req_1",'
        b'"body":{"id":"cmpl"}},"error":null}\n')


@pytest.mark.parametrize("sizes", [
    [], [1], [PART + 1], [10, 2 * PART + 5, 3], [PART // 16] * 3, [7] * 50_000, [3, PART]])
def test_what_is_sent_comes_in_parts_of_some_size(sizes: list[int]) -> None:
    whole = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    sent = list(joined(iter(whole)))
    assert b"".join(sent) == b"".join(whole)
    assert all(0 < len(part) <= PART + PART // 16 for part in sent)
    assert len(sent) <= 2 + 16 * sum(sizes) // PART


def test_erasing_takes_everything_and_keeps_the_sums(database: Database, account: str) -> None:
    job_id, other = make(database, account, 5), make(database, account, 2)
    finish(database, job_id, result(0))
    finish(database, job_id, result(1, "x"))
    with database.write() as connection:
        work.add_shard(connection, job_id, Shard("a", 1, "s", []))
        rows.move(connection, job_id, "erasing", by=UNFINISHED)
    rounds = 0
    done = False
    while not done:
        with database.write_over() as connection:
            done = rows.erase_parts(connection, job_id, 2)
        rounds += 1
    with database.write_over() as connection:
        rows.erase(connection, job_id)
    assert rounds > 5
    assert shown(database, job_id) is None
    assert shown(database, other).total == 2
    with database.read() as connection:
        known = job_figures(connection)
    assert (known.completed, known.failed, known.waiting) == (1, 1, 2)


def test_what_failed_is_tried_again(database: Database, account: str) -> None:
    job_id = make(database, account, 3)
    for one in (result(0), result(1, "x"), result(2)):
        finish(database, job_id, one)
    with database.write() as connection:
        assert work.retry_failed(connection, job_id) == 1
        assert [task.item.place for task in work.claim(connection, job_id, "w", 0, 5)] == [1]
    assert (shown(database, job_id).failed, shown(database, job_id).retries) == (0, 1)
