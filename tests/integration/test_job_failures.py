"""Jobs while everything is killed, and at their largest. For machines that have nothing else to do."""
from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.job_stack import JobStack, Json, ended, job, results, submit
from tests.paid import PATH, Person, body, until
from tests.tritons import Triton

#: How large the tests are: 1 is what they must show.
SCALE = float(os.environ.get("STRATA_TEST_SCALE", "1"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Iterator[Triton]:
    """A Triton that may be killed."""
    running = Triton(tmp_path_factory.mktemp("triton"), "tiny-llama", checkpoints)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def stack(triton: Triton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobStack]:
    folder = tmp_path_factory.mktemp("jobs")
    running = JobStack(folder, f"sqlite:///{folder / 'strata.db'}", triton.address, STRATA_REQUESTS_PER_MINUTE="100000",
                       STRATA_LOG_LEVEL="debug", STRATA_HOLD_LEASE="30")
    yield running
    running.stop()


@pytest.fixture
def person(stack: JobStack) -> Person:
    """Somebody, once the model is Warm."""
    person = stack.person(100_000_000)

    def answered() -> bool:
        with suppress(httpx.TransportError):
            return person.ask(max_tokens=1).status_code == 200
        return False

    until(answered, 300)
    return person


def test_nothing_is_lost_or_done_thrice_while_everything_is_killed(
    stack: JobStack, triton: Triton, person: Person
) -> None:
    """The worker 20 times, Redis twice, Triton once."""
    total, kills = int(2000 * SCALE), max(int(20 * SCALE), 4)
    out = stack.folder / "worker.out"
    before = out.stat().st_size
    already = person.client.get("/v1/usage").json()["tokens"]["charged"]
    job_id = submit(person, total, params={"max_tokens": 12, "temperature": 1})
    for kill in range(kills):
        # Spread over the whole Job, each at a random moment of the worker's life.
        until(lambda kill=kill: job(person, job_id)["counts"]["completed"] >= total * kill / (kills + 1), 600)
        time.sleep(random.Random(kill).uniform(0, 1))
        stack.workers[0].kill()
        stack.workers[0].wait()
        if kill in (kills // 4, kills // 2):
            stack.valkey.kill()
            time.sleep(1)
            stack.valkey.start()
        if kill == kills // 3:
            triton.kill()
            triton.start()
        stack.workers[:] = [stack.start_worker()]
    done = ended(person, job_id, 900)
    assert (done["status"], done["counts"]) == ("completed", {"total": total, "completed": total, "failed": 0})
    found = results(person, job_id)
    assert [line["index"] for line in found] == list(range(total))
    charged = sum(line["response"]["usage"]["total_tokens"] for line in found)
    assert done["tokens"] == {"charged": charged, "held": 0}
    assert stack.settled(person).charged - already == charged
    with out.open("rb") as log:
        log.seek(before)
        ran = Counter(int(index) for index in re.findall(rb'"index":(\d+),"event":"job_request_ran"', log.read()))
    assert ran.keys() == set(range(total))
    assert max(ran.values()) <= 2
    print(f"\n{total} requests, {kills} kills: {sum(ran.values())} runs to completion, {done}")


class Asker:
    """A person who asks again and again while something else goes on; seconds to each first token."""

    def __init__(self, person: Person) -> None:
        self._person = person

    def ask(self, times: int) -> list[float]:
        return [self._once(number) for number in range(times)]

    def _once(self, number: int) -> float:
        began = time.perf_counter()
        asked = body(prompt=f"Question {number} {began}", stream=True, max_tokens=4)
        with self._person.client.stream("POST", PATH, json=asked) as answer:
            assert answer.status_code == 200
            rows = answer.iter_lines()
            next(line for line in rows if line.startswith("data: "))
            first = time.perf_counter() - began
            for _ in rows:
                pass
        time.sleep(0.3)
        return first


def p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


def test_a_persons_first_token_takes_at_most_twice_as_long_beside_a_job(stack: JobStack, person: Person) -> None:
    asker, times = Asker(stack.person(10**7)), max(int(200 * SCALE), 40)
    asker.ask(10)
    idle = asker.ask(times)
    job_id = submit(person, int(5000 * SCALE), params={"max_tokens": 32, "temperature": 1})
    until(lambda: job(person, job_id)["counts"]["completed"] > 0)
    beside = asker.ask(times)
    now = job(person, job_id)
    assert now["status"] == "running", "the Job ended too early to say anything"
    print(f"\nfirst token, p50 and p95 in ms: idle {statistics.median(idle) * 1e3:.0f}, {p95(idle) * 1e3:.0f}; "
          f"beside a Job {statistics.median(beside) * 1e3:.0f}, {p95(beside) * 1e3:.0f}; {now['counts']}")
    person.client.delete(f"/v1/jobs/{job_id}").raise_for_status()
    assert p95(beside) <= 2 * p95(idle)


def large(total: int, bad: bool) -> bytes:
    made = []
    for number in range(total):
        fields: Json = {"model": "tiny-llama", "prompt": f"Number {number} " + "x" * 800, "max_tokens": 1}
        if bad:
            fields["max_tokens"] = "1"
        made.append(json.dumps({"custom_id": f"r{number}", "body": fields}))
    return "\n".join(made).encode()


@pytest.mark.parametrize("bad", [False, True])
def test_50_000_lines_are_accepted_or_refused_in_20_seconds_with_flat_memory(
    stack: JobStack, person: Person, bad: bool
) -> None:
    """Memory: beyond the lines themselves, of which every worker process has had some before."""
    content = large(50_000, bad)
    over = threading.Event()
    peak = [0]

    def watch() -> None:
        while not over.is_set():
            peak[0] = max(peak[0], *(worker.memory_info().rss for worker in stack.frontend.workers()))
            over.wait(0.05)

    usual = max(worker.memory_info().rss for worker in stack.frontend.workers())
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        began = time.monotonic()
        answer = person.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/jsonl"})
        took = time.monotonic() - began
        over.set()
        watching.result()
    assert answer.status_code == (400 if bad else 200), answer.text[:500]
    print(f"\n{len(content) / 1e6:.0f} MB, {'bad' if bad else 'good'}: {took:.1f} s, {(peak[0] - usual) / 1e6:+.0f} MB")
    if not bad:
        person.client.delete(f"/v1/jobs/{answer.json()['id']}").raise_for_status()
    assert took < 20
    assert peak[0] - usual < 60e6


DOWNLOAD = """
import sys, httpx
with httpx.stream("GET", sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"}, timeout=120) as answer:
    print(sum(part.count(b"\\n") for part in answer.iter_raw()), answer.num_bytes_downloaded)
"""


def test_results_download_as_a_stream(stack: JobStack, person: Person) -> None:
    """Of a few megabytes each, more together than a process of ours may grow by."""
    total = 60
    job_id = submit(person, total, params={"max_tokens": 8, "prompt_logprobs": -1})
    assert ended(person, job_id, 600)["counts"]["completed"] == total
    workers = stack.frontend.workers()
    usual = {worker.pid: worker.memory_info().rss for worker in workers}
    over, grown = threading.Event(), [0]

    def watch() -> None:
        while not over.is_set():
            grown[0] = max(grown[0], *(worker.memory_info().rss - usual[worker.pid] for worker in workers))
            over.wait(0.02)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        command = [sys.executable, "-c", DOWNLOAD, f"{stack.frontend.url}/v1/jobs/{job_id}/results", person.key]
        read = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.split()
        over.set()
        watching.result()
    print(f"\n{int(read[1]) / 1e6:.0f} MB of {read[0]} results, {grown[0] / 1e6:+.0f} MB")
    assert int(read[0]) == total
    assert int(read[1]) > 500e6
    assert grown[0] < 150e6
    person.client.delete(f"/v1/jobs/{job_id}").raise_for_status()
