"""Jobs over HTTP, with a worker, in front of a Triton of the protocol alone."""
from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from frontend.accounts.api_keys import create_key, list_keys
from frontend.accounts.audit import SYSTEM, list_events
from frontend.budgets.grants import give_grant
from frontend.db.token_records import Balance
from frontend.spend.limits import set_spend_limit
from tests.job_stack import FINAL, JobStack, ended, error, job, lines, results, submit
from tests.paid import Person, until
from tests.small_triton import SmallTriton

#: Tokens of each request that `submit` makes: here each character of a prompt is one.
EACH = 11 + 8


@pytest.fixture
def slowly(triton: SmallTriton):  # type: ignore[no-untyped-def]
    """Each token takes a tenth of a second."""
    triton.token_seconds = 0.1
    yield triton
    triton.token_seconds = 0.0


def test_a_job_runs_by_itself_and_costs_what_its_results_say(stack: JobStack, person: Person) -> None:
    job_id = submit(person, 40, name="a name")
    done = ended(person, job_id)
    assert (done["status"], done["name"], done["model"], done["error"]) == ("completed", "a name", "tiny-llama", None)
    assert done["counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert done["created_at"] <= done["started_at"] <= done["finished_at"] < done["expires_at"]
    found = results(person, job_id)
    assert [line["index"] for line in found] == list(range(40))
    assert {(line["status"], line["custom_id"], line["response"]["choices"][0]["text"]) for line in found} == {
        (200, None, "aaaaaaaa")}
    charged = sum(line["response"]["usage"]["total_tokens"] for line in found)
    assert done["tokens"] == {"charged": charged, "held": 0}
    assert stack.settled(person).charged == charged
    assert results(person, job_id, after=37) == found[38:]
    usage = person.client.get("/v1/usage").json()["days"]
    assert [(day["requests"], day["charged"]) for day in usage] == [(40, charged)]


def test_what_some_requests_do_wrong_fails_them_alone(person: Person) -> None:
    good, bad = ({"model": "tiny-llama", "prompt": "a", "max_tokens": most} for most in (2, 5000))
    answer = person.client.post("/v1/jobs", json={"requests": [
        {"custom_id": "x", "body": good}, {"custom_id": "y", "body": bad}, {"custom_id": "z", "body": good}]})
    done = ended(person, answer.json()["id"])
    assert (done["status"], done["counts"]) == ("completed", {"total": 3, "completed": 2, "failed": 1})
    found = results(person, done["id"])
    assert [(line["custom_id"], line["status"]) for line in found] == [("x", 200), ("y", 400), ("z", 200)]
    assert found[1]["error"]["code"] == "context_length_exceeded"
    assert "response" not in found[1]


def test_a_result_that_no_row_could_hold_is_refused(person: Person) -> None:
    done = ended(person, submit(person, 1, prompts=["a" * 1000], params={
        "prompt_logprobs": 100, "n": 128, "max_tokens": 1}))
    assert (done["status"], done["counts"]["failed"], done["tokens"]["charged"]) == ("completed", 1, 0)
    (line,) = results(person, done["id"])
    assert (line["error"]["code"], line["error"]["param"]) == ("invalid_request", "prompt_logprobs")
    assert "at most 5000000" in line["error"]["message"]


def test_nothing_is_stored_when_a_line_is_bad(person: Person) -> None:
    body = b'{"custom_id": "a", "body": {"model": "tiny-llama", "prompt": "x"}}\n{"custom_id": "a"}\nno\n'
    answer = person.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/jsonl"})
    assert error(answer) == (400, "invalid_request")
    assert [detail["param"] for detail in answer.json()["error"]["details"]] == ["line 2.body", "line 3"]
    assert person.client.get("/v1/jobs").json()["data"] == []


@pytest.mark.parametrize(("headers", "content", "status"), [
    ({"Content-Type": "text/plain"}, b"{}", 400),
    ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, b"{}", 400),
    ({"Content-Type": "application/json", "Idempotency-Key": ""}, b"{}", 400),
    ({"Content-Type": "application/json"}, b" " * (50 * 2**20 + 1), 413),
    ({"Content-Type": "application/json"}, b'{"requests": [{"custom_id": "a", "body": {"model": "m", "prompt": "a"}}]}',
     404),
])
def test_what_can_be_no_job_is_refused(
    person: Person, headers: dict[str, str], content: bytes, status: int
) -> None:
    answer = person.client.post("/v1/jobs", content=content, headers=headers)
    assert answer.status_code == status
    assert status != 413 or "larger than 50 MB" in answer.text


def test_lines_that_break_off_after_a_whole_one_are_no_job(person: Person) -> None:
    """What came would be a Job of its own, with the rest of the requests missing."""
    line = json.dumps({"custom_id": "1", "body": {"model": "tiny-llama", "prompt": "x", "max_tokens": 1}}) + "\n"
    url, key = person.client.base_url, person.client.headers["Authorization"]
    head = (f"POST /v1/jobs HTTP/1.1\r\nHost: strata\r\nAuthorization: {key}\r\nConnection: close\r\n"
            f"Content-Type: application/jsonl\r\nContent-Length: {2 * len(line)}\r\n\r\n")
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall((head + line).encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert " 400 " in answer.partition("\r\n")[0]
    assert f"The body broke off: Content-Length says {2 * len(line)} bytes, {len(line)} came." in answer
    assert person.client.get("/v1/jobs").json()["data"] == []


def test_idempotency(person: Person) -> None:
    body = json.dumps({"model": "tiny-llama", "prompts": ["a", "b"], "params": {"max_tokens": 1}}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": "one"}

    def post(content: bytes = body):  # type: ignore[no-untyped-def]
        return person.client.post("/v1/jobs", content=content, headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(), range(8)))
    assert Counter(answer.status_code for answer in answers) == {200: 8}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(person.client.get("/v1/jobs").json()["data"]) == 1
    assert error(post(body + b" ")) == (409, "idempotency_conflict")
    first = answers[0].json()["id"]
    person.client.delete(f"/v1/jobs/{first}")
    assert post(body + b" ").status_code == 200


def test_another_person_sees_nothing(stack: JobStack, person: Person) -> None:
    job_id = submit(person)
    other = stack.person(0)
    for method, path in (("GET", ""), ("GET", "/results"), ("GET", "/activations"), ("POST", "/cancel"),
                         ("DELETE", ""), ("GET", "/activations/x")):
        assert error(other.client.request(method, f"/v1/jobs/{job_id}{path}")) == (404, "not_found"), path
    assert other.client.get("/v1/jobs").json()["data"] == []
    assert ended(person, job_id)["status"] == "completed"


def test_a_key_needs_the_scope(stack: JobStack, person: Person) -> None:
    _, key = create_key(stack.database, SYSTEM, person.account, "narrow", frozenset({"completions"}))
    headers = {"Authorization": f"Bearer {key}"}
    for path in ("/v1/jobs", "/v1/files", "/v1/batches"):
        assert person.client.get(path, headers=headers).status_code == 403


def test_pages(person: Person) -> None:
    ids = [submit(person, 1) for _ in range(5)][::-1]
    first = person.client.get("/v1/jobs", params={"limit": 3}).json()
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (ids[:3], True)
    rest = person.client.get("/v1/jobs", params={"limit": 3, "after": first["last_id"]}).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (ids[3:], False)
    person.client.delete(f"/v1/jobs/{ids[2]}")  # an empty page would look like the end
    for query in ({"limit": 0}, {"limit": "x"}, {"page": 1}, {"after": ids[2]}, {"after": "job_none"}):
        assert person.client.get("/v1/jobs", params=query).status_code == 400


def test_waiting_ends_with_the_job(person: Person, slowly: SmallTriton) -> None:
    job_id = submit(person, 1)
    assert job(person, job_id, wait=30)["status"] == "completed"


def test_results_come_while_it_runs(person: Person, slowly: SmallTriton) -> None:
    job_id = submit(person, 80)
    until(lambda: job(person, job_id)["counts"]["completed"] >= 5)
    answer = person.client.get(f"/v1/jobs/{job_id}/results")
    now = job(person, job_id)
    assert now["status"] == "running"
    assert now["tokens"]["held"] > 0
    assert 5 <= len(lines(answer)) <= now["counts"]["completed"] < 80
    # Going on after what was complete then loses nothing and brings nothing twice.
    through = int(answer.headers["X-Strata-Complete-Through"])
    early = [line["index"] for line in lines(answer) if line["index"] <= through]
    ended(person, job_id)
    assert early + [line["index"] for line in results(person, job_id, after=through)] == list(range(80))


def test_cancel(stack: JobStack, person: Person, slowly: SmallTriton) -> None:
    job_id = submit(person, 200)
    until(lambda: job(person, job_id)["counts"]["completed"] >= 5)
    cancelled = person.client.post(f"/v1/jobs/{job_id}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["finished_at"] is not None
    assert stack.settled(person).held == 0
    last = job(person, job_id)
    found = results(person, job_id)
    assert 5 <= last["counts"]["completed"] == len(found) < 200
    assert stack.books(person).charged == sum(line["response"]["usage"]["total_tokens"] for line in found)
    assert error(person.client.post(f"/v1/jobs/{job_id}/cancel")) == (409, "job_not_cancellable")
    until(lambda: slowly.active == 0, 5)
    assert job(person, job_id) == last


def test_cancelling_at_the_end_leaves_one_final_state(stack: JobStack, person: Person) -> None:
    seen = Counter()
    for number in range(8):
        job_id = submit(person, 3)
        until(lambda job_id=job_id, number=number: job(person, job_id)["counts"]["completed"] >= min(number % 4, 2))
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _, job_id=job_id: person.client.post(f"/v1/jobs/{job_id}/cancel"), range(3)))
        done = job(person, job_id)
        won = sum(answer.status_code == 200 for answer in answers)
        assert won == (done["status"] == "cancelled")
        assert done["status"] in ("cancelled", "completed")
        seen[done["status"]] += 1
        until(lambda: stack.books(person).held == 0)
        assert (done["counts"]["completed"] == 3) or done["status"] == "cancelled"
        assert len(results(person, job_id)) == job(person, job_id)["counts"]["completed"] == done["counts"]["completed"]
    charged = sum(job(person, one["id"])["tokens"]["charged"] for one in person.client.get("/v1/jobs").json()["data"])
    assert stack.books(person).charged == charged
    assert seen.total() == 8


def test_delete_leaves_nothing(stack: JobStack, person: Person, slowly: SmallTriton) -> None:
    secret = "Tulgey wood 4711"
    running = submit(person, 1, prompts=[secret] * 50)
    done = submit(person, 1, prompts=[secret])
    ended(person, done)
    until(lambda: job(person, running)["counts"]["completed"] >= 1)
    for job_id in (running, done):
        assert person.client.delete(f"/v1/jobs/{job_id}").json() == {"id": job_id, "object": "job", "deleted": True}
        assert error(person.client.get(f"/v1/jobs/{job_id}")) == (404, "not_found")
        assert error(person.client.get(f"/v1/jobs/{job_id}/results")) == (404, "not_found")
        assert error(person.client.delete(f"/v1/jobs/{job_id}")) == (404, "not_found")
    assert stack.settled(person).held == 0
    until(lambda: slowly.active == 0, 5)
    time.sleep(0.5)
    for file in Path(stack.folder).glob("strata.db*"):
        assert secret.encode() not in file.read_bytes(), file
    assert not list((stack.folder / "storage").glob(f"jobs/{running}*"))


def test_tokens_run_out_and_a_grant_lets_it_go_on(stack: JobStack) -> None:
    poor = stack.person(10 * EACH + 5)
    job_id = submit(poor, 30)
    paused = job(poor, job_id, wait=30)
    assert (paused["status"], paused["reason"], paused["counts"]["completed"]) == ("paused", "budget_exceeded", 10)
    assert len(results(poor, job_id)) == 10
    assert stack.settled(poor) == Balance(10 * EACH + 5, 5, 0, 10 * EACH)
    give_grant(stack.database, SYSTEM, poor.account.id, 20 * EACH, "more")
    done = ended(poor, job_id)
    assert (done["status"], done["reason"], done["tokens"]["charged"]) == ("completed", None, 30 * EACH)
    assert stack.settled(poor).available == 5


def test_the_spend_limit_pauses(stack: JobStack, person: Person) -> None:
    set_spend_limit(stack.database, SYSTEM, "tiny-llama", 0)
    try:
        job_id = submit(person, 3)
        paused = job(person, job_id, wait=30)
        assert (paused["status"], paused["reason"]) == ("paused", "spend_cap")
    finally:
        set_spend_limit(stack.database, SYSTEM, "tiny-llama", None)
    assert ended(person, job_id)["status"] == "completed"


def test_people_go_first(person: Person, stack: JobStack, slowly: SmallTriton) -> None:
    """Beside a person's requests a Job takes few places, and when they are over it takes many again."""
    other = stack.person(100_000)
    job_id = submit(person, 400)
    until(lambda: slowly.active >= 24)
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            assert other.ask(max_tokens=2).status_code == 200

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        until(lambda: slowly.active <= 4, 10)
        over.set()
        asking.result()
    until(lambda: slowly.active >= 24, 20)
    person.client.delete(f"/v1/jobs/{job_id}")


def test_the_sdks_files_and_batches(stack: JobStack, person: Person, tmp_path: Path) -> None:
    sdk = openai.OpenAI(base_url=f"{stack.frontend.url}/v1", api_key=person.key)
    good = {"method": "POST", "url": "/v1/completions"}
    asked = [{"custom_id": f"r{n}", **good,
              "body": {"model": "tiny-llama", "prompt": "a", "max_tokens": 3 if n else 5000}}
             for n in range(4)]
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in asked))
    file = sdk.files.create(file=path.open("rb"), purpose="batch")
    assert (file.filename, file.bytes, file.purpose, file.status) == (
        "asked.jsonl", path.stat().st_size, "batch", "processed")
    assert sdk.files.content(file.id).read() == path.read_bytes()
    assert [one.id for one in sdk.files.list()] == [file.id]
    batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                               metadata={"what": "a test"})
    assert (batch.object, batch.metadata, batch.expires_at) == ("batch", {"what": "a test"}, batch.created_at + 86400)
    until(lambda: sdk.batches.retrieve(batch.id).status not in ("validating", "in_progress"))
    batch = sdk.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 3, 1)
    assert [one.id for one in sdk.batches.list(limit=1)] == [batch.id]
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    output = sdk.files.content(batch.output_file_id)
    found = [json.loads(line) for line in output.text.splitlines()]
    assert [line["custom_id"] for line in found] == ["r1", "r2", "r3"]
    assert {line["response"]["status_code"] for line in found} == {200}
    assert found[0]["response"]["body"]["choices"][0]["text"] == "aaa"
    (failed,) = [json.loads(line) for line in sdk.files.content(batch.error_file_id).text.splitlines()]
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("r0", 400)
    about = sdk.files.retrieve(batch.output_file_id)
    assert (about.purpose, about.bytes) == ("batch_output", len(output.content))
    assert sdk.files.retrieve(batch.error_file_id).bytes == len(sdk.files.content(batch.error_file_id).content)
    with pytest.raises(openai.ConflictError):
        sdk.batches.cancel(batch.id)
    assert sdk.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.files.content(file.id)


def test_a_batch_of_a_wrong_file_has_failed_and_says_where(stack: JobStack, person: Person) -> None:
    sdk = openai.OpenAI(base_url=f"{stack.frontend.url}/v1", api_key=person.key)
    good = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
            "body": {"model": "tiny-llama", "prompt": "a", "max_tokens": 1}}
    wrong = [good, {**good, "custom_id": "b", "url": "/v1/chat/completions"},
             {**good, "custom_id": "c", "body": {"model": "tiny-llama", "prompt": "a", "temprature": 1}}]
    content = "".join(json.dumps(line) + "\n" for line in wrong).encode()
    file = sdk.files.create(file=("x.jsonl", content), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(one.line, one.param) for one in batch.errors.data or []] == [(2, "url"), (3, "body.temprature")]
    assert batch.output_file_id is None
    with pytest.raises(openai.BadRequestError):
        sdk.files.create(file=("x.jsonl", content), purpose="fine-tune")
    with pytest.raises(openai.NotFoundError):
        sdk.batches.create(input_file_id="file-none", endpoint="/v1/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError):
        sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")


def test_a_batch_is_cancelled(stack: JobStack, person: Person, slowly: SmallTriton) -> None:
    sdk = openai.OpenAI(base_url=f"{stack.frontend.url}/v1", api_key=person.key)
    content = "".join(json.dumps({
        "custom_id": str(n), "method": "POST", "url": "/v1/completions",
        "body": {"model": "tiny-llama", "prompt": "a", "max_tokens": 8}}) + "\n" for n in range(100)).encode()
    file = sdk.files.create(file=("x.jsonl", content), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    until(lambda: (counts := sdk.batches.retrieve(batch.id).request_counts) and counts.completed >= 3)
    batch = sdk.batches.cancel(batch.id)
    assert batch.status == "cancelled"
    assert batch.output_file_id is not None
    assert batch.request_counts is not None
    assert len(sdk.files.content(batch.output_file_id).text.splitlines()) == batch.request_counts.completed


def test_what_people_do_with_jobs_and_files_is_in_the_audit_log_without_their_texts(
    stack: JobStack, person: Person, slowly: SmallTriton
) -> None:
    sdk = openai.OpenAI(base_url=f"{stack.frontend.url}/v1", api_key=person.key)
    job_id = submit(person, 50, name="Tulgey wood")
    for _ in range(2):  # the second ends nothing
        person.client.post(f"/v1/jobs/{job_id}/cancel")
    person.client.delete(f"/v1/jobs/{job_id}")
    line = {"custom_id": "Tulgey", "method": "POST", "url": "/v1/completions",
            "body": {"model": "tiny-llama", "prompt": "wood", "max_tokens": 100}}
    batches = []
    for wrong in ({}, {"url": "/v1/chat/completions"}):
        file = sdk.files.create(file=("Tulgey.jsonl", json.dumps({**line, **wrong}).encode()), purpose="batch")
        batches.append(sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"))
        sdk.files.delete(file.id)
    sdk.batches.cancel(batches[0].id)
    good, bad = (batch.id.replace("batch_", "job_") for batch in batches)
    events = list_events(stack.database, actor=person.account.id)
    assert {(event.account_id, event.origin) for event in events} == {(person.account.id, "127.0.0.1")}
    assert [(event.action, event.subject) for event in events if not event.action.startswith("file:")] == [
        ("job:submit", job_id), ("job:cancel", job_id), ("job:erase", job_id),
        ("job:submit", good), ("job:submit", bad), ("job:cancel", good)]
    assert [event.details["requests"] for event in events if event.action == "job:submit"] == [50, 1, 0]
    (key,) = {event.details["key"] for event in events if event.action == "job:submit"}
    assert key in {key.id for key in list_keys(stack.database, person.account)}
    files = [(event.action, event.subject) for event in events if event.action.startswith("file:")]
    assert files == [(f"file:{act}", batch.input_file_id) for batch in batches for act in ("add", "erase")]
    assert "Tulgey" not in str(events)
    assert "wood" not in str(events)


def test_a_model_that_is_cold_is_loaded_for_a_job(stack: JobStack, person: Person, triton: SmallTriton) -> None:
    triton.states["tiny-llama_engine"] = "UNAVAILABLE"
    assert ended(person, submit(person, 5))["status"] == "completed"
    assert triton.state("tiny-llama") == "READY"


def test_metrics(stack: JobStack, person: Person, slowly: SmallTriton) -> None:
    total = stack.frontend.total
    before = total("strata_job_requests_total", status="completed")
    job_id = submit(person, 60)
    until(lambda: total("strata_job_requests_open", state="running") > 0)
    assert total("strata_jobs", status="running") >= 1
    ended(person, job_id)
    person.client.delete(f"/v1/jobs/{job_id}")
    assert total("strata_job_requests_total", status="completed") >= before + 60
    assert total("strata_job_requests_open") == 0


@pytest.mark.slow  # what it waits for takes seconds
def test_a_worker_that_stops_hands_its_work_back_in_ten_seconds(
    stack: JobStack, person: Person, triton: SmallTriton
) -> None:
    triton.token_seconds = 3.0
    try:
        job_id = submit(person, 30)
        until(lambda: triton.active >= 10)
        (worker,) = stack.workers
        began = time.monotonic()
        worker.terminate()
        assert worker.wait(20) == 0
        assert time.monotonic() - began < 10
        until(lambda: triton.active == 0)
        assert stack.books(person).held == 0
        now = job(person, job_id)
        assert (now["status"], now["counts"]["completed"]) == ("running", 0)
    finally:
        triton.token_seconds = 0.0
        stack.workers[:] = [stack.start_worker()]
    done = ended(person, job_id)
    assert (done["status"], done["counts"]["completed"]) == ("completed", 30)


@pytest.mark.slow
def test_a_worker_that_is_killed_and_a_redis_that_forgets(stack: JobStack, person: Person) -> None:
    job_id = submit(person, 400)
    until(lambda: job(person, job_id)["counts"]["completed"] >= 40)
    stack.workers[0].kill()
    stack.workers[0].wait()
    stack.valkey.kill()
    stack.valkey.start()
    stack.workers[:] = [stack.start_worker()]
    done = ended(person, job_id)
    assert (done["status"], done["counts"]["completed"]) == ("completed", 400)
    found = results(person, job_id)
    assert [line["index"] for line in found] == list(range(400))
    charged = sum(line["response"]["usage"]["total_tokens"] for line in found)
    assert stack.settled(person).charged == done["tokens"]["charged"] == charged
    assert {one["status"] for one in person.client.get("/v1/jobs").json()["data"]} <= set(FINAL)
