"""One lane of a Job: begins its next requests as places become free, brings home what comes of them, and lets go.

A lane has a few requests in flight at once and begins another as soon as one ends, so that the engine's batch stays
full. After a while it makes room for lanes that wait; what it has begun it finishes.
"""
from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from frontend.db import job_work as rows
from frontend.db import jobs as job_rows
from frontend.db.job_records import Job, Lane, Task
from frontend.errors import ApiError, Unavailable
from frontend.jobs.attempt import Attempt, Outcome, Verdict, release
from frontend.jobs.ending import RETRY, Ledger
from frontend.jobs.governor import Governor
from frontend.jobs.queue import Queue
from frontend.jobs.shards import FULL, PATIENCE, OpenShard
from frontend.jobs.tools import Tools

#: The most tasks that are claimed at once.
CHUNK = 8
#: Seconds after which a lane makes room for others that wait; between two looks at its Job; and between two looks at
#: what it may begin, when nothing ends.
SLICE, LOOK, TICK = 10.0, 1.0, 0.1
#: Seconds that a lane begins nothing after something did not work that is no fault of a request: first and last.
FIRST_PAUSE, LAST_PAUSE = 0.5, 15.0
#: Seconds that what is in flight may take to end when the worker stops.
GRACE = 5.0
_log = structlog.get_logger(__name__)


@dataclass
class _Group:
    """Answers with Activations that wait for their shard to be written."""

    shard: OpenShard
    due: float
    outcomes: list[Outcome] = field(default_factory=list)
    #: It could not be written: it is tried again when it is due.
    failed: bool = False


class LaneWork:
    """A worker's turn in a lane."""

    def __init__(self, tools: Tools, governor: Governor, messages: Queue, job: Job, lane: Lane) -> None:
        self._tools, self._governor, self._messages = tools, governor, messages
        self._job, self._lane = job, lane
        self._ledger = Ledger(tools, job, lane.claim)
        self._flying: dict[int, Attempt] = {}
        self._landed: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._group: _Group | None = None
        #: Whether nothing more is to be begun here, and whether the last claim brought less than it might have.
        self._over = self._dry = False
        self._pause, self._resume_at = 0.0, 0.0

    def run(self) -> None:
        """Work until there is nothing to do, others wait, or the worker stops; then let go of the lane."""
        try:
            self._run()
        finally:
            self._abandon()
            self._let_go()

    def _run(self) -> None:
        began = looked = time.monotonic()
        while not self._over or self._flying or self._group:
            if time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self._look(others_wait=looked - began >= SLICE and self._others_wait())
            if not self._over:
                self._begin_or_wait()
            if self._dry and not self._flying:
                self._dry = False
                self._over = self._over or not self._has_more()
            self._land()
            if self._tools.stopping.is_set():
                self._stop()
                return

    # What is begun

    def _begin_or_wait(self) -> None:
        try:
            self._begin()
        except Unavailable:  # the database is away
            self._wait(FIRST_PAUSE)

    def _begin(self) -> None:
        """Begin what may be begun."""
        if time.monotonic() < self._resume_at:
            return
        try:
            card = self._tools.inference.model(self._job.model)
        except ApiError:
            if not self._flying:  # a request says what is wrong; one at a time is enough
                self._start(self._claim(1), held=False)
            return
        room = self._governor.take(card, self._job.account_id, self._job.id, len(self._flying), CHUNK)
        if room:
            tasks: list[Task] = []
            try:
                tasks = self._claim(room)
            finally:
                self._governor.give_back(self._job.model, room - len(tasks))
            self._start(tasks, held=True)

    def _claim(self, most: int) -> list[Task]:
        tasks: list[Task] = []
        with self._tools.database.write() as connection:
            if job_rows.is_open(connection, self._job.id):
                tasks = rows.claim(connection, self._job.id, self._lane.worker or "", self._lane.lane, most)
        if len(tasks) < most:
            self._dry = True
            self._wait(LOOK)  # nothing is left but what may be put back
        return tasks

    def _start(self, tasks: list[Task], held: bool) -> None:
        among = self._governor.there(self._job.model) if held else 0
        for task in tasks:
            attempt = Attempt(self._tools, self._job, task)
            self._flying[task.item.place] = attempt

            def work(attempt: Attempt = attempt) -> None:
                outcome = attempt.work()
                if held:
                    self._governor.give_back(self._job.model)
                    if outcome.run is not None:
                        tokens = outcome.run.usage().completion_tokens // outcome.run.plan.choices
                        self._governor.observe(self._job.model, among, outcome.latency_ms / 1000, tokens)
                self._landed.put(outcome)

            threading.Thread(target=work, name=f"{self._job.id}.{task.item.place}", daemon=True).start()

    # What has ended

    def _land(self) -> None:
        """Bring home what has ended, and wait a moment if nothing has."""
        try:
            outcome: Outcome | None = self._landed.get(timeout=TICK)
        except queue.Empty:
            outcome = None
        while outcome is not None:
            del self._flying[outcome.task.item.place]
            try:
                self._bring_home(outcome)
            except BaseException:
                self._release(outcome)  # or its lease would be renewed for ever
                raise
            outcome = None if self._landed.empty() else self._landed.get()
        group = self._group
        if group and (time.monotonic() >= group.due
                      or (not group.failed and (group.shard.nbytes >= FULL or not self._flying))):
            self._close_group()

    def _bring_home(self, outcome: Outcome) -> None:
        match outcome.verdict:
            case Verdict.ANSWERED:
                self._pause = 0.0
                _log.debug("job_request_ran", job_id=self._job.id, index=outcome.task.item.place)
                self._answer(outcome)
            case Verdict.REFUSED:
                self._ledger.refuse(outcome)
            case Verdict.NO_TOKENS | Verdict.NO_SPEND:
                self._ledger.put_back(outcome)
                if self._ledger.pause(outcome):
                    _log.info("job_paused", job_id=self._job.id, why=outcome.verdict.value)
                    self._over = True
                else:
                    self._wait(FIRST_PAUSE)
            case Verdict.LATER:
                self._ledger.put_back(outcome)
                self._pause = min(2 * self._pause or FIRST_PAUSE, LAST_PAUSE)
                self._wait(self._pause)
            case _:
                self._ledger.put_back(outcome)

    def _answer(self, outcome: Outcome) -> None:
        assert outcome.run is not None
        assert outcome.choices is not None
        if outcome.run.plan.request.activations is None:
            self._ledger.answer([outcome])
            return
        if self._group is None:
            self._group = _Group(OpenShard(outcome.task.item.place), time.monotonic() + PATIENCE)
        self._group.shard.add(outcome.task.item, outcome.run, outcome.choices)
        self._group.outcomes.append(outcome)

    def _close_group(self) -> None:
        assert self._group is not None
        try:
            self._ledger.answer(self._group.outcomes, self._group.shard)
        except Unavailable:
            _log.warning("job_storage_away", job_id=self._job.id)
            self._group.failed = True  # again in a moment; its holds are kept, and no more is begun until then
            self._group.due = time.monotonic() + PATIENCE
            self._wait(PATIENCE)
            if not self._tools.stopping.is_set():
                return
        self._group = None

    def _wait(self, seconds: float) -> None:
        self._resume_at = max(self._resume_at, time.monotonic() + seconds)

    # Whether to go on

    def _look(self, others_wait: bool) -> None:
        """See whether the Job still is to be worked on, and the lane still is ours."""
        if others_wait:
            self._over = True
            for attempt in list(self._flying.values()):
                if not attempt.placed:
                    attempt.stop()
        try:
            with self._tools.database.read() as connection:
                ours, is_open = rows.has_lane(connection, self._lane), job_rows.is_open(connection, self._job.id)
                job = job_rows.job_of(connection, self._job.id, None)
        except Unavailable:
            return
        if not is_open or not ours:
            self._over = True
        if job is None or job.final or not ours:
            for attempt in list(self._flying.values()):
                attempt.stop()

    def _has_more(self) -> bool:
        try:
            with self._tools.database.read() as connection:
                return job_rows.is_open(connection, self._job.id) and rows.has_free_tasks(connection, self._job.id)
        except Unavailable:
            return True

    def _others_wait(self) -> bool:
        try:
            return self._messages.waiting() > 0
        except Exception:  # Redis is away, or lost what waited
            return False

    def _stop(self) -> None:
        """The worker stops: let what is nearly done end, and give the rest back."""
        deadline = time.monotonic() + GRACE
        while self._flying and time.monotonic() < deadline:
            self._land()
        for attempt in list(self._flying.values()):
            attempt.stop()
        deadline = time.monotonic() + 1.0
        while self._flying and time.monotonic() < deadline:
            self._land()
        if self._group:
            self._close_group()

    def _abandon(self) -> None:
        """Give up what is still in flight, and what could not be stored; nothing of it, as a rule."""
        for attempt in self._flying.values():
            attempt.abandon()
        while not self._landed.empty():
            self._release(self._landed.get())
        for outcome in self._group.outcomes if self._group else []:
            self._release(outcome)

    def _release(self, outcome: Outcome) -> None:
        if outcome.hold_id is not None:
            release(self._tools, outcome.hold_id)

    def _let_go(self) -> None:
        """Free the lane and what it has claimed, and say so if there is more to do."""
        while True:  # nobody else does, as long as this worker lives
            try:
                with self._tools.database.write() as connection:
                    rows.put_all_back(connection, self._lane)
                    ours = rows.leave_lane(connection, self._lane)
                break
            except Unavailable:
                if self._tools.ended.wait(RETRY):
                    return
        if ours and self._has_more():
            self._messages.send(self._job.id, self._lane.lane)


def take(tools: Tools, governor: Governor, messages: Queue, job_id: str, number: int) -> LaneWork | None:
    """A turn in a lane, unless there is nothing to do in it, or another has it."""
    with tools.database.write() as connection:
        if not job_rows.is_open(connection, job_id) or not rows.has_free_tasks(connection, job_id):
            return None
        if not rows.take_lane(connection, job_id, number, tools.worker):
            return None
        job_rows.begin(connection, job_id, datetime.now(UTC))
        job = job_rows.job_of(connection, job_id, None)
    assert job is not None
    return LaneWork(tools, governor, messages, job, Lane(job_id, number, tools.worker, 0))
