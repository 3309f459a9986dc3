"""A thousand requests, many of them broken off, leave nothing behind: plain ones, and such that capture."""
from __future__ import annotations

import concurrent.futures
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from frontend.db import Database
from frontend.db.figures import figures
from frontend.limits.store import connect
from tests.engine import metric, wait_until_idle
from tests.frontend import get, samples
from tests.stack import Stack

AT_ONCE = 32
#: What Redis keeps of requests that run or wait: their slots and places, and who waits in which order.
CLAIMS = ("strata:slots:*", "strata:slots-of:*", "strata:places:of:*", "strata:places:*@*", "strata:places:*:queue*",
          "strata:places:*:people")
#: Seconds for what a request held to be given back after its client has gone.
PATIENCE = 20.0
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


@dataclass(frozen=True)
class Measured:
    """A process: its command, resident bytes, threads, and open files and sockets."""

    command: str
    memory: int
    threads: int
    files: list[str]


def measure(stack: Stack) -> dict[int, Measured]:
    """Every process of a stack by its id."""
    found = {}
    for process in [psutil.Process(stack.process.pid), *psutil.Process(stack.process.pid).children(recursive=True)]:
        if process.status() == psutil.STATUS_ZOMBIE:
            continue
        command = " ".join(process.cmdline()).strip() or process.name()
        found[process.pid] = Measured(command, process.memory_info().rss, process.num_threads(), files(process))
    return found


def regions() -> int:
    """Shared-memory files of ours, of Triton's and of Python's. Any other stack on the machine would count as well."""
    return sum(path.name.startswith(("strata-", "psm_", "sem.")) for path in Path("/dev/shm").iterdir())


def held(stack: Stack) -> list[str]:
    """What somebody still holds of requests that have ended. All streams to Triton share one connection, so one that
    nobody closed is no socket more: it shows as a request that Triton or the frontend still has, or as a thread."""
    found = []
    redis = connect(f"unix://{stack.home / 'valkey.sock'}")
    found += [key.decode() for pattern in CLAIMS for key in redis.scan_iter(pattern, count=1000)]
    redis.close()
    database = Database(f"sqlite:///{stack.home / 'strata.db'}")
    with database.read() as connection:
        known = figures(connection)
    database.close()
    found += [f"{count} holds of {model}" for model, count in known.holds_open.items()]
    found += [f"{tokens} tokens of {model}" for model, tokens in known.tokens_held.items()]
    for model in ("tiny-llama_engine", "tiny-llama_tokenizer"):
        if waiting := metric(stack, "nv_inference_pending_request_count", model):
            found.append(f"{waiting} requests that wait in Triton for {model}")
    found += [f"{sample.value} requests in the frontend" for sample in samples(get(stack.frontend_metrics).text)
              if sample.name == "strata_requests_active" and sample.value]
    return found


def wait_until_nothing_is_held(stack: Stack) -> None:
    """All is given back soon after the engine has become idle."""
    deadline = time.monotonic() + PATIENCE
    while found := held(stack):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def grown(before: dict[int, Measured], after: dict[int, Measured]) -> list[str]:
    """What a process has more of than before."""
    assert after.keys() == before.keys(), "a process died or was left behind"
    found = []
    for pid, then in before.items():
        now = after[pid]
        if now.memory - then.memory >= SLACK_BYTES:
            found.append(f"{then.command}: {(now.memory - then.memory) / 2**20:.0f} MiB more")
        if now.threads > then.threads + 1:
            found.append(f"{then.command}: {now.threads - then.threads} threads more")
        if len(now.files) > len(then.files) + 2:
            found.append(f"{then.command}: {set(now.files) - set(then.files)} more")
    return found


def test_what_a_running_request_holds_is_seen_and_goes_with_it(stack: Stack) -> None:
    """Otherwise the test below would look for nothing."""
    body = plain(0, breaks=True) | {"n": 8, "max_tokens": 1900}
    with (httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=60) as client,
          client.stream("POST", "/v1/completions", json=body) as answer):
        lines = answer.iter_lines()
        next(lines)
        seen = " ".join(held(stack))
    for what in ("strata:slots:", "strata:slots-of:", "strata:places:of:", "strata:places:tiny-llama@", "1 holds",
                 "tokens of tiny-llama", "1.0 requests in the frontend"):
        assert what in seen, seen
    wait_until_nothing_is_held(stack)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("body", "answered", "broken"), [(plain, 1000, 200), (capturing, 667, 333)])
def test_a_thousand_requests_leave_nothing_behind(
    stack: Stack, body: Callable[[int, bool], dict[str, object]], answered: int, broken: int
) -> None:
    run(stack, 0, body, answered // 4, broken // 4)  # caches and pools fill up here
    wait_until_idle(stack, "tiny-llama")
    shared = regions()
    before = measure(stack)
    more = []
    for attempt in range(1, 4):  # an allocator grows by a step now and then; what leaks grows every time
        assert run(stack, attempt * 10_000, body, answered, broken) == {"answered": answered, "broken off": broken}
        wait_until_idle(stack, "tiny-llama")
        wait_until_nothing_is_held(stack)
        time.sleep(2)
        assert regions() == shared
        after = measure(stack)
        more = grown(before, after)
        if not more:
            return
        before = after
    raise AssertionError(more)
