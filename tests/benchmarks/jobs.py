"""A Job against a hand-written asyncio client with the same requests, 32 at once: `python -m tests.benchmarks.jobs`.

Both to the same running Strata, one after the other, so that what slows the machine for minutes slows both. The client
is what somebody writes who has no Jobs: httpx and a semaphore. A Job's time is from its submission to its end as
`GET /v1/jobs/{id}` says it, the client's from its first request to its last answer; both are polled or awaited from the
same process.
"""
from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

import httpx

from model_repository import catalog
from tests.benchmarks import servers
from tests.benchmarks.client import BenchmarkError

AT_ONCE, PROMPT_TOKENS = 32, 32


@dataclass(frozen=True)
class Figures:
    """What one way took, and how many completion tokens came of it."""

    seconds: float
    tokens: int

    @property
    def rate(self) -> float:
        """Completion tokens a second."""
        return self.tokens / self.seconds


def bodies(model: str, count: int, seed: str) -> list[dict[str, Any]]:
    """Requests that share no prefix and differ in length, as real ones do."""
    rng = random.Random(seed)
    return [{"model": model, "prompt": [rng.randrange(1000, 100_000) for _ in range(PROMPT_TOKENS)],
             "max_tokens": rng.randrange(16, 112), "temperature": 0, "ignore_eos": True} for _ in range(count)]


async def by_client(url: str, headers: dict[str, str], asked: list[dict[str, Any]]) -> Figures:
    """As somebody would write it."""
    semaphore = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600,
                                 limits=httpx.Limits(max_connections=AT_ONCE)) as client:

        async def one(body: dict[str, Any]) -> int:
            async with semaphore:
                answer = await client.post("/v1/completions", json=body)
                return int(answer.raise_for_status().json()["usage"]["completion_tokens"])

        began = time.perf_counter()
        tokens = await asyncio.gather(*map(one, asked))
        return Figures(time.perf_counter() - began, sum(tokens))


def by_job(url: str, headers: dict[str, str], asked: list[dict[str, Any]]) -> Figures:
    """One Job of them all."""
    with httpx.Client(base_url=url, headers=headers, timeout=600) as client:
        began = time.perf_counter()
        body = {"requests": [{"custom_id": str(number), "body": one} for number, one in enumerate(asked)]}
        job = client.post("/v1/jobs", json=body).raise_for_status().json()
        while job["status"] in ("queued", "running"):
            job = client.get(f"/v1/jobs/{job['id']}", params={"wait": 60}).json()
        seconds = time.perf_counter() - began
        if job["counts"]["completed"] != len(asked):
            raise BenchmarkError(f"the Job is {job['status']}: {job['counts']}")
        prompts = PROMPT_TOKENS * len(asked)
        client.delete(f"/v1/jobs/{job['id']}")
    return Figures(seconds, job["tokens"]["charged"] - prompts)


def main() -> None:
    """Measure in rounds that alternate, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.jobs", description=str(__doc__))
    parser.add_argument("--model", default="tiny-llama", help="an id of the catalog (%(default)s)")
    parser.add_argument("--requests", type=int, default=400, help="in each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="after one that does not count (%(default)s)")
    options = parser.parse_args()
    client, job = [], []
    with servers.strata(catalog.load()[options.model]) as server:
        url, headers = f"http://127.0.0.1:{server.target.port}", dict(server.target.headers)
        for number in range(options.rounds + 1):
            count = options.requests if number else options.requests // 4
            client.append(asyncio.run(by_client(url, headers, bodies(options.model, count, f"client {number}"))))
            time.sleep(6)  # until nobody counts as a person who is there
            job.append(by_job(url, headers, bodies(options.model, count, f"job {number}")))
    print(f"## A Job against an asyncio client, {AT_ONCE} at once, {options.requests} requests, {options.model}\n")
    print("| round | client tok/s | Job tok/s | ratio |", "|---|---|---|---|", sep="\n")
    ratios = []
    for number, (one, other) in enumerate(zip(client[1:], job[1:], strict=True), 1):
        ratios.append(other.rate / one.rate)
        print(f"| {number} | {one.rate:.0f} | {other.rate:.0f} | {ratios[-1]:.2f} |")
    print(f"\nMedian ratio: {statistics.median(ratios):.2f}\n")


if __name__ == "__main__":
    main()
