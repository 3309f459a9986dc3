"""`strata jobs`, as an admin uses it."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.db import job_work as work
from frontend.db import jobs as rows
from frontend.db.job_records import Item, Result
from frontend.db.migrate import migrate
from frontend.jobs.service import Owner, new_job
from tests.unit.cli.conftest import Strata


@pytest.fixture
def job_id(strata: Strata) -> str:
    """A Job of three requests, one of which has failed."""
    database, now = strata.database, datetime.now(UTC)
    migrate(database)
    account = create_account(database, SYSTEM, "ada@example.org")
    owner = Owner(account.id, "key", None, "f")
    job = new_job(owner, "secret name", "tiny-llama", 3, now, now + timedelta(days=1), None)
    with database.write() as connection:
        rows.add_job(connection, job)
        rows.add_items(connection, job.id, [Item(place, None, b"{}") for place in range(3)])
        rows.add_lanes(connection, job.id, 1)
        rows.move(connection, job.id, "queued", by=("preparing",))
        for place, code in ((0, None), (1, "inference_error")):
            work.finish_task(connection, job.id, Result(place, None, 200, code, "r", b"{}"), 7, 0, 0)
    return job.id


def test_list_and_show(strata: Strata, job_id: str) -> None:
    (line,) = strata.json("jobs", "list")
    assert (line["id"], line["email"], line["status"], line["total"], line["completed"], line["failed"],
            line["charged"]) == (job_id, "ada@example.org", "queued", 3, 1, 1, 14)
    assert strata.json("jobs", "list", "ada@example.org", "--status", "queued") == [line]
    assert strata.json("jobs", "list", "--status", "completed") == []
    shown = strata.json("jobs", "show", job_id)
    assert shown["errors"] == {"inference_error": 1}
    printed = strata.ok("jobs", "show", job_id)
    assert "1 failed: inference_error" in printed
    assert "secret" not in printed + strata.ok("jobs", "list")


def test_cancel_and_retry(strata: Strata, job_id: str) -> None:
    assert "has not ended" in strata.refused("jobs", "retry", job_id)
    strata.ok("jobs", "cancel", job_id)
    assert "has ended: it is cancelled" in strata.refused("jobs", "cancel", job_id)
    assert strata.json("jobs", "show", job_id)["status"] == "cancelled"
    strata.ok("jobs", "retry", job_id)
    again = strata.json("jobs", "show", job_id)
    assert (again["status"], again["completed"], again["failed"], again["finished_at"]) == ("queued", 1, 0, None)
    with strata.database.write() as connection:
        assert [task.item.place for task in work.claim(connection, job_id, "w", 0, 9)] == [1, 2]
    events = strata.json("audit", "list", "--account", "ada@example.org")
    assert [event["action"] for event in events if event["subject"] == job_id] == ["job:cancel", "job:retry"]


def test_what_is_not_there(strata: Strata) -> None:
    for command in ("show", "cancel", "retry"):
        assert "There is no Job" in strata.refused("jobs", command, "job_none")
