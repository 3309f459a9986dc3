"""One request of a Job, from its JSON to what came of it; and what to do about it where that is no answer."""
from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum

import structlog
from redis.exceptions import RedisError

from frontend.accounts.keys import random_text
from frontend.budgets.clamp import Need
from frontend.budgets.holds import Ending, Order, drop, take_hold
from frontend.completions.choices import Choice, Piece
from frontend.completions.plan import Plan
from frontend.completions.walk import Limits, Run, plan_request
from frontend.db import balances as balance_rows
from frontend.db.job_records import Job, Task
from frontend.errors import (
    ApiError,
    BudgetExceeded,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    SpendCap,
    Unavailable,
)
from frontend.inference import Cancelled
from frontend.inference.faults import BrokeOff
from frontend.jobs.tools import Tools
from frontend.limits.slots import ClientLeft
from frontend.schemas.completions import load_completion
from frontend.spend.limits import is_paused

ROUTE = "/v1/jobs"
#: How often a request may fail in a way that may be its own fault, and be begun at all, before it counts as failed.
MOST_FAULTS, MOST_ATTEMPTS = 3, 12
#: Seconds for which a request waits for its turn, and then may run. Nobody waits for its answer, and one that is begun
#: anew loses what it has.
TIMEOUT = 4 * 3600.0
#: Log probabilities that a result may hold, 50 to 80 bytes each: it stands in memory whole, and in one row, of which
#: PostgreSQL gives back no more than half a gigabyte.
MOST_ENTRIES = 5_000_000
_log = structlog.get_logger(__name__)


class Verdict(Enum):
    """What is to become of a task."""

    ANSWERED = "its completion is its result"
    REFUSED = "the error is its result"
    FAULTY = "it is begun again, not too often: it may be its own fault"
    BROKEN_OFF = "it is begun again, not too often: an engine died with it"
    LATER = "it is begun again later: something else does not work"
    STOPPED = "it is begun again: it was stopped by us"
    NO_TOKENS = "its Job waits for tokens"
    NO_SPEND = "its Job waits for the Spend limit"


@dataclass
class Outcome:
    """What came of one attempt. With ANSWERED, the hold is still there, and is settled with the result."""

    task: Task
    verdict: Verdict
    request_id: str
    error: ApiError | None = None
    hold_id: str | None = None
    run: Run | None = None
    choices: list[tuple[Choice, Piece]] | None = None
    latency_ms: int = 0
    needs: int = 0

    def ending(self) -> Ending:
        """How it ended, for the books."""
        assert self.run is not None
        return Ending(200, ran=True, charged=True, completion_tokens=self.run.usage().completion_tokens,
                      latency_ms=self.latency_ms, activation_bytes=self.run.activation_bytes)


class Attempt:
    """One try at a task, on a thread of its own; others may stop it."""

    def __init__(self, tools: Tools, job: Job, task: Task) -> None:
        self._tools, self._job, self._task = tools, job, task
        self._cancel: Callable[[], object] = lambda: None
        self.stopped = self.abandoned = False
        #: Whether it has a place at an engine.
        self.placed = False
        self._request_id = f"req_{random_text(24)}"
        self._hold_id: str | None = None
        self._needs = 0

    def stop(self) -> None:
        """End it soon. May be called from any thread."""
        self.stopped = True
        self._cancel()

    def abandon(self) -> None:
        """End it soon; nobody takes its outcome home."""
        self.abandoned = True
        self.stop()

    def work(self) -> Outcome:
        """Do it. Never raises."""
        try:
            outcome = self._work()
        except Exception as raised:
            outcome = self._failed(raised)
        if self._hold_id is not None and (outcome.verdict is not Verdict.ANSWERED or self.abandoned):
            release(self._tools, self._hold_id)
        return outcome

    def _work(self) -> Outcome:
        tools, settings = self._tools, self._tools.settings
        if self._task.attempts > MOST_ATTEMPTS:
            raise BrokeOff(f"The request was begun {MOST_ATTEMPTS} times, and what ran it died each time.")
        request = load_completion(self._task.item.body, settings.max_total_tokens)
        plan = plan_request(
            request, tools.inference, Limits(settings.max_total_tokens, settings.request_timeout_seconds))
        limits = Limits(settings.max_total_tokens, TIMEOUT)
        if plan.entries > MOST_ENTRIES:
            raise InvalidRequest(
                f"This request asks for up to {plan.entries} log probabilities, and a result of a Job has at most "
                f"{MOST_ENTRIES}. Ask for fewer, or send it to POST /v1/completions, which has no such limit.",
                "prompt_logprobs" if plan.prompt_entries else "logprobs")
        # No max_tokens is lowered in a Job: it would change results where nobody looks.
        need = Need(plan.prompt_tokens, plan.choices, plan.max_tokens, least=plan.max_tokens)
        self._needs = need.total(plan.max_tokens)
        with ExitStack() as stack:
            # Under a name of its own, so that a person's Jobs are not before that person's other requests in line.
            visit = stack.enter_context(tools.places.visit(
                plan.card, f"job:{self._job.account_id}", limits.timeout))
            self._arm(visit.give_up)
            if not visit.wait(0):
                self._refuse_what_would_be_refused_later(plan)
                visit.wait()
            self.placed = True
            hold = take_hold(tools.database, Order(
                f"{hold_prefix(self._job.id, self._task.item.place)}{random_text(6)}", self._job.account_id,
                self._job.key_id, plan.card.id, ROUTE, request.user, need))
            self._hold_id = hold.id
            # Nothing is noted of what it produces: who is killed with it begins it again, and it is charged once.
            tools.leases.keep(hold.id, lambda: None, self.stop)
            started = time.perf_counter()
            run = Run(plan, tools.inference, visit.endpoint, self._request_id, limits, self._arm)
            stack.callback(run.close)
            run.begin()
            choices = run.done()
            latency = round((time.perf_counter() - started) * 1000)
        return Outcome(self._task, Verdict.ANSWERED, self._request_id, None, hold.id, run, choices, latency)

    def _refuse_what_would_be_refused_later(self, plan: Plan) -> None:
        """No model is loaded for a request that can't be paid for."""
        if is_paused(self._tools.database, plan.card.id):
            raise SpendCap("New work is paused by the Spend limit.")
        with self._tools.database.read() as connection:
            balance = balance_rows.balance_of(connection, self._job.account_id)
        if balance.available + balance.held < self._needs:
            raise BudgetExceeded("The tokens do not suffice.")

    def _arm(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        if self.stopped:
            cancel()

    def _failed(self, raised: Exception) -> Outcome:
        verdict, error = self._verdict(raised)
        if verdict is Verdict.FAULTY and self._task.faults + 1 >= MOST_FAULTS:
            verdict = Verdict.REFUSED
        if verdict is Verdict.BROKEN_OFF and self._task.attempts >= MOST_ATTEMPTS:
            verdict = Verdict.REFUSED
        if verdict not in (Verdict.STOPPED, Verdict.NO_TOKENS, Verdict.NO_SPEND):
            _log.warning("job_request_failed", job_id=self._job.id, index=self._task.item.place,
                         request_id=self._request_id, verdict=verdict.name, code=error.code, exc_info=raised)
        return Outcome(self._task, verdict, self._request_id, error, self._hold_id, needs=self._needs)

    def _verdict(self, raised: Exception) -> tuple[Verdict, ApiError]:
        error = raised if isinstance(raised, ApiError) else InternalError("This is a bug in Strata.")
        if self.stopped or isinstance(raised, (Cancelled, ClientLeft)):
            return Verdict.STOPPED, error
        if isinstance(raised, BudgetExceeded):
            return Verdict.NO_TOKENS, error
        if isinstance(raised, SpendCap):
            return Verdict.NO_SPEND, error
        if isinstance(raised, InvalidRequest):
            return Verdict.REFUSED, error
        if isinstance(raised, ModelNotFound):  # it was there when the Job was submitted, and may be again
            return Verdict.LATER, error
        if isinstance(raised, BrokeOff):
            return Verdict.BROKEN_OFF, error
        ours = not isinstance(raised, (ApiError, RedisError))
        if error.status == Unavailable.status or not (self.placed or ours):  # or its turn did not come in time
            return Verdict.LATER, error
        return Verdict.FAULTY, error


def hold_prefix(job_id: str, place: int) -> str:
    """How the ids of holds for a request of a Job begin."""
    return f"{job_id}.{place}."


def release(tools: Tools, hold_id: str) -> None:
    """Give a hold back. Where the database is away, the keeper does, once its lease has run out."""
    tools.leases.forget(hold_id)
    with suppress(Unavailable), tools.database.write() as connection:
        drop(connection, hold_id)
