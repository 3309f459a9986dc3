"""A thousand requests, many of them broken off, leave nothing behind: plain ones, and such that capture."""
from __future__ import annotations

import concurrent.futures
import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engine import wait_until_idle
from tests.stack import Stack

AT_ONCE = 32
#: A process may keep this much more than before: allocators return memory in steps.
SLACK_BYTES = 48 * 2**20


def plain(number: int, breaks: bool) -> dict[str, object]:
    """The body of a request; one that is to be broken off takes long."""
    random_ = random.Random(number)
    body = {"model": "tiny-llama", "prompt": f"Request {number} says", "max_tokens": random_.choice([4, 16, 32]),
            "stream": random_.random() < 0.5 or breaks, "n": random_.choice([1, 1, 2]), "ignore_eos": True,
            "logprobs": random_.choice([None, 2]), "echo": random_.random() < 0.2}
    return body | {"max_tokens": 400, "n": 2} if breaks else body


def capturing(number: int, breaks: bool) -> dict[str, object]:
    """The same, with Activations."""
    random_ = random.Random(-number)
    layers = random_.choice(["all", [0], [3, "embedding", "final_norm"]])
    positions = random_.choice(["all", "prompt", "generated", "last", [-1, 0]])
    return plain(number, breaks) | {"activations": {"layers": layers, "positions": positions}}


def one(client: httpx.Client, number: int, body: dict[str, object], breaks: bool) -> str:
    """One request; `breaks` leaves it at a random moment."""
    try:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            if breaks:
                lines = answer.iter_lines()
                for _ in range(random.Random(number).choice([0, 1, 8])):
                    next(lines)
                return "broken off"
            answer.read()
            return "answered"
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"


def run(stack: Stack, first: int, body: Callable[[int, bool], dict[str, object]], answered: int,
        broken: int) -> dict[str, int]:
    numbers = range(first, first + answered + broken)
    breaking = set(random.Random(first).sample(list(numbers), broken))
    with (concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool,
          httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=120) as client):
        outcomes = list(pool.map(lambda n: one(client, n, body(n, n in breaking), n in breaking), numbers))
    return {outcome: outcomes.count(outcome) for outcome in set(outcomes)}


def files(process: psutil.Process) -> list[str]:
    """Its open files and sockets. Not the database's: a pool of connections opens those, up to its size."""
    targets = []
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(entry.readlink()))
    return [target for target in targets if "/strata.db" not in target]


def measure(stack: Stack) -> dict[int, tuple[str, int, int, list[str]]]:
    """Of every process: its command, resident bytes, threads, and open files and sockets."""
    found = {}
    for process in [psutil.Process(stack.process.pid), *psutil.Process(stack.process.pid).children(recursive=True)]:
        if process.status() == psutil.STATUS_ZOMBIE:
            continue
        command = " ".join(process.cmdline()) or process.name()
        found[process.pid] = (command, process.memory_info().rss, process.num_threads(), files(process))
    return found


def regions() -> int:
    """Shared-memory files of ours and of Triton's."""
    return sum(1 for _ in Path("/dev/shm").iterdir())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("body", "answered", "broken"), [(plain, 1000, 200), (capturing, 667, 333)])
def test_a_thousand_requests_leave_nothing_behind(
    stack: Stack, body: Callable[[int, bool], dict[str, object]], answered: int, broken: int
) -> None:
    run(stack, 0, body, answered, broken)  # caches and pools fill up here
    wait_until_idle(stack, "tiny-llama")
    before, shared = measure(stack), regions()
    assert run(stack, 10_000, body, answered, broken) == {"answered": answered, "broken off": broken}
    wait_until_idle(stack, "tiny-llama")
    time.sleep(2)
    after = measure(stack)
    assert after.keys() == before.keys(), "a process died or was left behind"
    assert regions() == shared
    for pid, (command, memory, threads, opened) in before.items():
        _, memory_now, threads_now, opened_now = after[pid]
        assert memory_now - memory < SLACK_BYTES, command
        assert threads_now <= threads + 1, command
        assert len(opened_now) <= len(opened) + 2, (command, set(opened_now) - set(opened))
