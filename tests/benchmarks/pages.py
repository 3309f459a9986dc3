"""How long the App's pages take on the server for somebody with 10,000 requests and 60 Jobs in the books, and how large
they are.

On a SQLite, a Valkey and a Triton of its own, which has the models' tokenizers loaded, in one process.
"""
from __future__ import annotations

import hashlib
import io
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flask.testing import FlaskClient
from sqlalchemy import event

from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.keys import random_text
from frontend.accounts.service import create_account
from frontend.accounts.sessions import LIFE
from frontend.api.parts import EXTENSION
from frontend.app import create_app
from frontend.budgets.grants import give_grant
from frontend.db import Database, balances, job_work, sessions
from frontend.db.job_records import Result
from frontend.db.migrate import migrate
from frontend.db.records import Account, Session
from frontend.db.token_records import UsageRecord
from frontend.jobs.lines import Submission
from frontend.jobs.queue import Queue
from frontend.jobs.service import Jobs, Owner
from frontend.jobs.storage import Storage
from frontend.limits.store import connect
from frontend.settings import Settings
from model_repository import catalog
from tests.benchmarks import servers
from tests.tritons import Triton
from tests.valkey import Valkey

REQUESTS, DAYS, KEYS, MODELS = 10_000, 90, 20, 4
SERVED = ("smollm2-135m", "tiny-llama")
#: Jobs in the books, and requests of each but the newest, which has as many as there are in the books beside.
JOBS, JOB_REQUESTS = 60, 20
PATHS = ("/usage", "/usage?days=90", "/usage?days=365", "/usage.csv", "/usage/request", "/keys", "/jobs", "/jobs/rows",
         "/jobs/{job}", "/account", "/models", "/models/states", "/workbench", "/admin/people",
         "/admin/people/{account}", "/admin/requests", "/admin/spend", "/admin/models", "/admin/health", "/admin/audit",
         "/docs/completions")
ROUNDS = 20


@dataclass(frozen=True)
class Cost:
    """Milliseconds of each time that a page was made, statements that it took, and bytes of its text."""

    taken: list[float]
    statements: int
    size: int


def measure(requests: int = REQUESTS, rounds: int = ROUNDS) -> dict[str, Cost]:
    """Open each page so often, after once that does not count."""
    checkpoints = [servers.checkpoint(catalog.load()[model]).parent for model in SERVED]
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder, ExitStack() as stack:
        valkey = Valkey()
        stack.callback(valkey.stop)
        triton = Triton(Path(folder) / "home", ",".join(SERVED), checkpoints[0])
        stack.callback(triton.stop)
        settings = replace(
            Settings.from_environment(), home=Path(folder), database_url=f"sqlite:///{Path(folder) / 'strata.db'}",
            redis_url=valkey.url, triton_urls=(triton.address,), models=SERVED, job_storage=f"file://{folder}",
            log_level="error", public_url="http://127.0.0.1:8080")
        database = Database(settings.database_url)
        migrate(database)
        account, secret = _furnish(database, requests)
        job = _furnish_jobs(database, settings, account, requests)
        database.close()
        app = create_app(settings)
        asked = [0]
        event.listen(app.extensions[EXTENSION].database.engine, "before_cursor_execute",
                     lambda *_: asked.__setitem__(0, asked[0] + 1))
        client = app.test_client()
        client.set_cookie("strata_session", secret)
        return {path: _open(client, path.format(job=job, account=account.id), rounds, asked) for path in PATHS}


def table(costs: dict[str, Cost]) -> str:
    """A row for each page."""
    lines = ["| page | p50 ms | most ms | statements | kB |", "|---|---|---|---|---|"]
    for path, cost in costs.items():
        lines.append(f"| {path} | {statistics.median(cost.taken):.1f} | {max(cost.taken):.1f} | {cost.statements} | "
                     f"{cost.size / 1000:.0f} |")
    return "\n".join(lines)


def _open(client: FlaskClient, path: str, rounds: int, asked: list[int]) -> Cost:
    taken, size = [], 0
    for _ in range(rounds + 1):
        asked[0], began = 0, time.perf_counter()
        answer = client.get(path)
        size = len(answer.data)
        taken.append((time.perf_counter() - began) * 1e3)
        assert answer.status_code == 200, path
    return Cost(taken[1:], asked[0], size)


def _furnish(database: Database, requests: int) -> tuple[Account, str]:
    """Somebody with keys, tokens and requests, who is signed in; and the secret of the cookie."""
    account = create_account(database, SYSTEM, "bench@example.org", "admin")
    give_grant(database, SYSTEM, account.id, 10**9, "to be measured")
    keys = [create_key(database, SYSTEM, account, f"key {number}")[0].id for number in range(KEYS)]
    now = datetime.now(UTC)
    with database.write() as connection:
        for number in range(requests):
            balances.add_usage(connection, UsageRecord(
                f"req_{number}", account.id, keys[number % KEYS], now - timedelta(days=number % DAYS),
                f"model-{number % MODELS}", "/v1/completions", None, 30, 20, 50, 0, 200, 7, "request"))
    return account, _sign_in(database, account, now)


def _furnish_jobs(database: Database, settings: Settings, account: Account, requests: int) -> str:
    """Jobs of somebody, each as if workers had run half of it and one in ten had failed; the id of the newest."""
    service = Jobs(database, Storage(settings.job_storage), Queue(connect(settings.redis_url)), settings.job_days)
    newest = ""
    for number in range(JOBS):
        total = JOB_REQUESTS if number < JOBS - 1 else requests
        submission = Submission(io.BytesIO(b'null\n{"prompt": "The sky is"}\n' * total), "A sweep", SERVED[0], total)
        newest = service.submit(Owner(account.id, "key", None, str(number)), SYSTEM, submission).job.id
        with database.write() as connection:
            for place in range(total // 2):
                status, code = (200, None) if place % 10 else (400, "context_length_exceeded")
                job_work.finish_task(connection, newest, Result(place, None, status, code, f"req_{place}", b"{}"),
                                     charged=0, output=0, error=0)
    return newest


def _sign_in(database: Database, account: Account, now: datetime) -> str:
    secret = random_text(43)
    session = Session(f"sess_{random_text(20)}", account.id, now, now, now + LIFE, "127.0.0.1", "bench")
    with database.write() as connection:
        sessions.add_session(connection, session, hashlib.sha256(secret.encode()).hexdigest())
    return secret


if __name__ == "__main__":
    print(f"## Pages with {REQUESTS:,} requests\n", table(measure()), sep="\n", end="\n\n")
