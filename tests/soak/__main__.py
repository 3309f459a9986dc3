"""Soaks a real Strata of its own in mixed traffic while a model comes and goes, and says whether anything was wrong.

Wrong is: a request that ended otherwise than it should, a record or a ledger that does not agree with what answers said
to the token, a token that is still held, a process that died or keeps growing; and a soak in which something that it is
there for never happened. The exit status is 1 then.
"""
from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from frontend.budgets.usage import export_usage
from frontend.db import Database
from tests.soak.people import Person
from tests.soak.traffic import CHANGING, EXPECTED, KINDS, STEADY, Seen, one
from tests.stack import REPOSITORY, Stack
from tests.unit.budgets.books import check_books

PEOPLE, AT_ONCE = 3, 8
#: Of a process's memory: it may grow so much, in the part of the soak in which caches and pools are full already.
SLACK = 64 * 2**20


def main() -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=str(__doc__).split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long; 3 in continuous integration")
    minutes = parser.parse_args().minutes
    checkpoints = os.environ.get("STRATA_CHECKPOINTS")
    with tempfile.TemporaryDirectory(prefix="strata-soak-") as folder:
        stack = Stack.start(Path(folder), f"{STEADY},{CHANGING}", Path(checkpoints) if checkpoints else None)
        try:
            problems = soak(stack, minutes * 60)
        finally:
            stack.stop()
        if problems:
            print(*cries(stack.home / "log" / "triton.log"), sep="\n", file=sys.stderr)
    for problem in problems:
        print(f"soak: {problem}", file=sys.stderr)
    return 1 if problems else 0


def soak(stack: Stack, seconds: float) -> list[str]:
    """Send traffic for so long. Returns what was wrong, a line each."""
    database = Database(f"sqlite:///{stack.home / 'strata.db'}")
    people = [Person.make(database, stack.url, f"person{number}") for number in range(PEOPLE)]
    seen, over = Seen(), threading.Event()

    def ask(number: int) -> None:
        chance = random.Random(number)
        while not over.is_set():
            one(people[number % PEOPLE], seen, chance)

    def whole(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            seen.note(f"this failure of the soak's own:\n{traceback.format_exc()}")

    threads = [threading.Thread(target=whole, args=(lambda number=number: ask(number),)) for number in range(AT_ONCE)]
    threads.append(threading.Thread(target=whole, args=(lambda: come_and_go(stack, over),)))
    started = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        time.sleep(seconds / 3)  # caches and pools fill up
        before = memory(stack)
        while time.monotonic() - started < seconds:
            time.sleep(min(30, seconds / 6))
            print(f"{time.monotonic() - started:5.0f} s: {dict(seen.outcomes)}", flush=True)
    finally:
        over.set()
    for thread in threads:
        thread.join()
    time.sleep(5)
    return [*wrong_outcomes(seen), *never_happened(seen, stack), *wrong_books(database, people, seen),
            *grown(before, memory(stack))]


def cries(log: Path) -> list[str]:
    """What a Triton that died said of it: the folder of its log goes away with the soak."""
    lines = log.read_text(errors="replace").splitlines()
    starts = [at for at, line in enumerate(lines) if "ASSERTION FAILED" in line
              or (line.startswith("Signal (") and "(15)" not in line)]
    return [line[:200] for line in lines[starts[0] : starts[0] + 24]] if starts else []


def come_and_go(stack: Stack, over: threading.Event) -> None:
    """Unload a model again and again; those who ask for it have it loaded again."""
    environment = {**os.environ, "STRATA_HOME": str(stack.home), "STRATA_MODELS": f"{STEADY},{CHANGING}",
                   "STRATA_TRITON_URLS": stack.grpc}
    strata = [sys.executable, "-m", "frontend", "models"]
    subprocess.run([*strata, "policy", CHANGING, "--warm", "on_demand"], cwd=REPOSITORY, env=environment, check=True,
                   stdout=subprocess.DEVNULL)
    while not over.wait(20):
        subprocess.run([*strata, "unload", CHANGING], cwd=REPOSITORY, env=environment, check=True,
                       stderr=subprocess.DEVNULL)


def memory(stack: Stack) -> dict[int, tuple[str, int]]:
    """Each long-lived process of Strata: its command, and the bytes that are its own. Not those of the model that comes
    and goes."""
    found = {}
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        try:
            lineage = " ".join(" ".join(one.cmdline()) for one in (process, *process.parents()))
            if f"{CHANGING}_engine" not in lineage and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())[:100], process.memory_full_info().uss
        except psutil.Error:
            continue
    return found


def grown(before: dict[int, tuple[str, int]], after: dict[int, tuple[str, int]]) -> list[str]:
    """Processes that died, or that are larger than they were."""
    found = []
    for pid, (command, then) in before.items():
        if pid not in after:
            found.append(f"died: {command}")
        elif after[pid][1] - then > SLACK:
            found.append(f"{(after[pid][1] - then) / 2**20:.0f} MiB more than after a third of the time: {command}")
    return found


def wrong_outcomes(seen: Seen) -> list[str]:
    """How requests should not have ended."""
    return [f"{count} requests ended as {outcome}" for outcome, count in seen.outcomes.items()
            if outcome not in EXPECTED]


def never_happened(seen: Seen, stack: Stack) -> list[str]:
    """What a soak is there for and this one did not see."""
    page = httpx.get(stack.frontend_metrics, timeout=10).text
    loads = [line for line in page.splitlines()
             if line.startswith("strata_model_loads_total{") and CHANGING in line and 'outcome="succeeded"' in line]
    print(f"answers by kind: {dict(seen.kinds)}; loads of {CHANGING}: {loads}", flush=True)
    reloaded = sum(float(line.rpartition(" ")[2]) for line in loads) > 1
    return [*(f"no {kind} request was answered" for kind in sorted(KINDS) if not seen.kinds[kind]),
            *([] if seen.outcomes["broken off"] else ["no client left"]),
            *([] if reloaded else [f"{CHANGING} was never loaded again"])]


def wrong_books(database: Database, people: list[Person], seen: Seen) -> list[str]:
    """Where the ledger, the records of usage and what answers said do not agree."""
    found = []
    records = {}
    for person in people:
        balance = check_books(database, person.account_id)
        if balance.held:
            found.append(f"{balance.held} tokens are still held")
        records |= {record.id: record for record in export_usage(database, person.account_id)}
    for request_id, used in seen.used.items():
        record = records.get(request_id)
        if record is None or (record.prompt_tokens, record.completion_tokens) != used or record.charged != sum(used):
            found.append(f"{request_id} used {used}, and its record is {record}")
    print(f"{len(records)} records, {len(seen.used)} answers, "
          f"{sum(record.charged for record in records.values())} tokens charged", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
