"""A frontend of several workers with a database, a Valkey and a keeper of its own, in front of the run's Triton."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from deploy.local.process import die_with_parent
from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.keys import random_text
from frontend.accounts.service import create_account
from frontend.budgets.grants import give_grant
from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.db.records import Account
from frontend.db.token_records import Balance
from frontend.warmth import wishes
from frontend.warmth.records import Records
from tests.frontend import Frontend
from tests.stack import REPOSITORY
from tests.unit.budgets.books import check_books
from tests.valkey import Valkey

#: Seconds after which the keeper takes a request for dead. On a busy machine, living ones wait for a core too.
LEASE = 5.0
PATIENCE = 60.0
PATH = "/v1/completions"
#: How many `streams` runs at once.
STREAMS = 32


@dataclass(frozen=True)
class Person:
    """An account, and a client that sends its key."""

    account: Account
    key: str
    client: httpx.Client

    def ask(self, **fields: Any) -> httpx.Response:
        """Ask tiny-llama for a completion of 4 prompt tokens."""
        return self.client.post(PATH, json=body(**fields))


class Paid:
    """All of it, running."""

    def __init__(
        self, folder: Path, database_url: str, triton: str, processes: int = 4, **environment: str
    ) -> None:
        self.valkey = Valkey()
        self.database = Database(database_url)
        migrate(self.database)
        self.environment = {
            "STRATA_TRITON_URLS": triton, "STRATA_DATABASE_URL": database_url, "STRATA_REDIS_URL": self.valkey.url,
            "STRATA_MODELS": "tiny-llama", "STRATA_HOLD_LEASE": str(LEASE), **environment,
        }
        self.folder = folder
        self.frontend = Frontend.start(folder, processes, **self.environment)
        self.keeper = self.start_keeper()

    def start_keeper(self) -> subprocess.Popen[bytes]:
        """Start a keeper, beside those that run."""
        with (self.folder / "keeper.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "frontend", "keeper"], cwd=REPOSITORY, stdout=out, stderr=out,
                env={**os.environ, "STRATA_HOME": str(self.folder), **self.environment}, preexec_fn=die_with_parent)

    def start_worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker, beside those that run. Whoever asks for it ends it."""
        with (self.folder / "worker.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "frontend", "worker"], cwd=REPOSITORY, stdout=out, stderr=out,
                env={**os.environ, "STRATA_HOME": str(self.folder), **self.environment, **environment},
                preexec_fn=die_with_parent)

    def person(self, tokens: int) -> Person:
        """Somebody new with so many tokens."""
        account = create_account(self.database, SYSTEM, f"{random_text(12).lower()}@example.org")
        if tokens:
            give_grant(self.database, SYSTEM, account.id, tokens, "for tests")
        return self.key_of(account)

    def key_of(self, account: Account) -> Person:
        """Another key of an account."""
        _, key = create_key(self.database, SYSTEM, account, "tests")
        limits = httpx.Limits(max_connections=None)
        return Person(account, key, httpx.Client(
            base_url=self.frontend.url, headers={"Authorization": f"Bearer {key}"}, timeout=120, limits=limits))

    def books(self, person: Person) -> Balance:
        """What the books say, which add up."""
        return check_books(self.database, person.account.id)

    def settled(self, person: Person) -> Balance:
        """What the books say once nothing is held."""
        until(lambda: self.books(person).held == 0)
        return self.books(person)

    def drain(self, triton: str, drained: bool) -> None:
        """Drain a Triton, or send it requests again."""
        wishes.drain(self.database, Records(self.valkey.client), SYSTEM, triton, drained)

    def worker_of(self, client: httpx.Response) -> psutil.Process:
        """The worker process at the other end of an answer's connection."""
        stream = client.extensions["network_stream"]
        ours = stream.get_extra_info("socket").getsockname()
        for worker in self.frontend.workers():
            if any(c.raddr and tuple(c.raddr) == ours for c in worker.net_connections("tcp")):
                return worker
        raise LookupError("no worker has this connection")

    def stop(self) -> None:
        """End everything."""
        for process in (self.keeper, self.frontend.process):
            process.terminate()
            process.wait(PATIENCE)
        self.database.close()
        self.valkey.stop()


def body(**fields: Any) -> dict[str, Any]:
    """A request of 4 prompt tokens that produces just as many tokens as max_tokens says."""
    return {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 8, "ignore_eos": True, **fields}


def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.05)


@dataclass(frozen=True)
class Ended:
    """How a stream ended: "whole", or with which code; and the tokens that came of it. Whether it was to capture."""

    how: str
    tokens: int
    captures: bool


def streams(person: Person, when_all_run: Callable[[], object], tokens: int = 1500) -> Counter[str]:
    """How STREAMS streams end, to which something happens once all have begun."""
    return Counter(one.how for one in run_streams(person, when_all_run, tokens))


def run_streams(person: Person, when_all_run: Callable[[], object], tokens: int, capturing: int = 0) -> list[Ended]:
    """The same, stream by stream. So many of them ask for Activations."""
    all_run = threading.Barrier(STREAMS + 1, timeout=120)

    def stream(number: int) -> Ended:
        captures = number < capturing
        asked = body(max_tokens=tokens, stream=True, return_token_ids=True,
                     **({"activations": {"layers": [1, 2]}} if captures else {}))
        with person.client.stream("POST", PATH, json=asked) as answer:
            if answer.status_code != 200:
                return Ended(f"{answer.status_code} {answer.read().decode()}", 0, captures)
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            came, event = 0, next(lines)
            all_run.wait()
            while event != "data: [DONE]":
                told = json.loads(event[6:])
                if "error" in told:
                    return Ended(told["error"]["code"], came, captures)
                came += sum(len(choice["token_ids"]) for choice in told["choices"])
                event = next(lines)
        return Ended("whole", came, captures)

    with ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(stream, number) for number in range(STREAMS)]
        all_run.wait()
        when_all_run()
        return [one.result() for one in running]
