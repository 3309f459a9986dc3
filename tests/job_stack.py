"""A frontend, a keeper and workers for tests of Jobs, and how a person uses Jobs."""
from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from tests.paid import Paid, Person

FINAL = ("completed", "failed", "cancelled", "expired")
Json = dict[str, Any]


class JobStack(Paid):
    """As Paid, with a worker."""

    def __init__(self, folder: Path, database_url: str, triton: str, **environment: str) -> None:
        super().__init__(folder, database_url, triton, processes=2, **environment)
        self.workers: list[subprocess.Popen[bytes]] = [self.start_worker()]

    def stop(self) -> None:
        """End everything."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(30)
        super().stop()


def submit(person: Person, count: int = 3, **more: Any) -> str:
    """Submit a Job of so many prompts, and return its id."""
    params = {"max_tokens": 8, "ignore_eos": True, **more.pop("params", {})}
    prompts = [f"Number {number:04d}" for number in range(count)]
    body = {"model": "tiny-llama", "prompts": prompts, "params": params, **more}
    answer = person.client.post("/v1/jobs", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def job(person: Person, job_id: str, wait: int = 0) -> Json:
    """A Job as it is now."""
    answer = person.client.get(f"/v1/jobs/{job_id}", params={"wait": wait} if wait else {})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ended(person: Person, job_id: str, patience: float = 120.0) -> Json:
    """A Job once it has ended."""
    deadline = time.monotonic() + patience
    while (now := job(person, job_id, wait=5))["status"] not in FINAL:
        assert time.monotonic() < deadline, now
    return now


def results(person: Person, job_id: str, after: int | None = None) -> list[Json]:
    """The results that are there."""
    answer = person.client.get(f"/v1/jobs/{job_id}/results", params={} if after is None else {"after": after})
    assert answer.status_code == 200, answer.text
    return lines(answer)


def lines(answer: httpx.Response) -> list[Json]:
    """The objects of a JSONL answer."""
    return [json.loads(line) for line in answer.text.splitlines()]


def error(answer: httpx.Response) -> tuple[int, str]:
    """How an answer says that it is none."""
    return answer.status_code, answer.json()["error"]["code"]
