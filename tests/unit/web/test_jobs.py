"""The Jobs pages, on Jobs whose work is written into the database: no worker runs here."""
from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from frontend.accounts.audit import list_events
from frontend.db import Database
from frontend.db import job_work as work
from frontend.db import jobs as rows
from frontend.db.job_records import Item, Result, Shard
from frontend.db.records import Account
from frontend.jobs.service import Owner, new_job
from frontend.jobs.storage import Storage
from frontend.settings import Settings
from tests.unit.web.conftest import Browser

SignIn = Callable[[Account], Browser]
NAME = "<script>alert(1)</script>"


def make(database: Database, account: Account, total: int = 4) -> str:
    """A Job that is queued."""
    now = datetime.now(UTC)
    job = new_job(Owner(account.id, "key", None, "f"), NAME, "tiny-llama", total, now, now + timedelta(days=1), None)
    with database.write() as connection:
        rows.add_job(connection, job)
        rows.add_items(connection, job.id, [Item(place, NAME, b"{}") for place in range(total)])
        rows.add_lanes(connection, job.id, 1)
        rows.move(connection, job.id, "queued", by=("preparing",))
    return job.id


def finish(database: Database, job_id: str, place: int, code: str | None = None) -> None:
    """Give a request its result."""
    body = json.dumps({"error": {"code": code}} if code else {"id": "cmpl", "choices": [{"text": NAME}]}).encode()
    result = Result(place, NAME, 400 if code else 200, code, "req_1", body)
    with database.write() as connection:
        assert work.finish_task(connection, job_id, result, charged=5, output=0, error=0)


def test_jobs_and_their_parts_that_move(signed_in: SignIn, database: Database, ada: Account) -> None:
    browser = signed_in(ada)
    browser.get("/jobs")
    assert "No Jobs yet." in browser.words
    job_id = make(database, ada)
    browser.get("/jobs/rows")
    assert 'max="4" value="0"' in browser.page
    finish(database, job_id, 0)
    finish(database, job_id, 1, "context_length_exceeded")
    browser.get("/jobs/rows")
    assert 'max="4" value="2"' in browser.page
    assert "2 of 4, 1 failed" in browser.words
    for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/progress"):
        browser.get(path)
        for words in ("Completed 1", "Failed 1", "Left 2", "Tokens charged 10", "context_length_exceeded 1"):
            assert words in browser.words, words


def test_results_and_shards_are_files(
    signed_in: SignIn, settings: Settings, database: Database, ada: Account
) -> None:
    browser, job_id = signed_in(ada), make(database, ada)
    finish(database, job_id, 2)
    answer = browser.get(f"/jobs/{job_id}/results.jsonl")
    assert f'filename="{job_id}.jsonl"' in answer.headers["Content-Disposition"]
    assert json.loads(answer.text)["index"] == 2
    name = "000002-aaaa.safetensors"
    Storage(settings.job_storage).save(f"jobs/{job_id}/{name}", io.BytesIO(b"0123456789"))
    with database.write() as connection:
        work.add_shard(connection, job_id, Shard(name, 10, "f" * 64, [{"index": 2}]))
    browser.get(f"/jobs/{job_id}")
    assert name in browser.words
    assert browser.client.get(f"/jobs/{job_id}/activations/{name}").data == b"0123456789"
    part = browser.client.get(f"/jobs/{job_id}/activations/{name}", headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.data) == (206, b"234")


def test_a_job_is_cancelled_and_erased(signed_in: SignIn, database: Database, ada: Account) -> None:
    browser, job_id = signed_in(ada), make(database, ada)
    for _ in range(2):
        browser.get("/account")
        assert browser.post(f"/jobs/{job_id}/cancel").status_code == 303, "also where it has ended"
    browser.get(f"/jobs/{job_id}")
    assert "cancelled" in browser.words
    assert browser.get(f"/jobs/{job_id}/progress", **{"HX-Request": "true"}).status_code == 286, "it asks no more"
    assert browser.get(f"/jobs/{job_id}/progress").status_code == 200
    browser.get(f"/jobs/{job_id}/erase")
    assert browser.post(f"/jobs/{job_id}/erase").status_code == 303
    assert browser.get(f"/jobs/{job_id}").status_code == 404
    noted = [(event.action, event.actor, event.origin) for event in list_events(database, account_id=ada.id)
             if event.subject == job_id]
    assert noted == [("job:cancel", ada.id, "127.0.0.1"), ("job:erase", ada.id, "127.0.0.1")], "each once"


def test_the_jobs_of_others_are_not_there_and_names_are_text(
    signed_in: SignIn, person: Callable[..., Account], database: Database, ada: Account
) -> None:
    job_id = make(database, ada)
    finish(database, job_id, 0)
    eve = person("eve@example.org")
    theirs = signed_in(eve)
    for path in ("", "/progress", "/results.jsonl", "/erase", "/activations/x"):
        assert theirs.get(f"/jobs/{job_id}{path}").status_code == 404, path
    theirs.get("/account")
    token = theirs.token
    for path in ("/cancel", "/erase"):
        assert theirs.post(f"/jobs/{job_id}{path}", with_token=False, form_token=token).status_code == 404, path
    theirs.get("/jobs")
    assert "No Jobs yet." in theirs.words
    make(database, eve)
    for after in (make(database, ada), "job_nothing"):  # nor is their place in time told
        assert theirs.get(f"/jobs?after={after}").status_code == 400
        assert "after is nothing of yours" in theirs.words
    hers = signed_in(ada)
    for path in ("/jobs", f"/jobs/{job_id}", f"/jobs/{job_id}/erase"):
        assert "<script>alert" not in hers.get(path).text
        assert "&lt;script&gt;" in hers.page
    results = hers.get(f"/jobs/{job_id}/results.jsonl")
    assert results.headers["X-Content-Type-Options"] == "nosniff"
    assert results.headers["Content-Disposition"].startswith("attachment")
