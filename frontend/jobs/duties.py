"""What workers see to beside working: lanes of the dead, lanes that nobody was told of, Jobs that can go on, and ends.

Any number of workers may do so at once: each step is a change that one of them makes.
"""
from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import structlog
from redis.exceptions import RedisError

from frontend.budgets.holds import drop
from frontend.db import balances, job_files
from frontend.db import job_work as rows
from frontend.db import jobs as job_rows
from frontend.db.job_records import UNFINISHED, Job, Lane
from frontend.db.jobs import ERASING, PREPARING
from frontend.errors import Unavailable
from frontend.jobs.attempt import hold_prefix
from frontend.jobs.erasing import erase
from frontend.jobs.queue import Queue
from frontend.jobs.results import expired_lines
from frontend.jobs.tools import Tools
from frontend.spend.limits import is_paused
from frontend.stillness import Stillness

#: Seconds between two rounds, for which a lane's beat may stand still, and for which a free lane may before it gets a
#: message again.
ROUND, LEASE, FORGOTTEN = 1.0, 10.0, 3.0
#: How long a Job may take to be stored before it counts as given up.
_PREPARATION = timedelta(hours=1)
_log = structlog.get_logger(__name__)


class Duties:
    """What one worker has seen of lanes and Jobs."""

    def __init__(self, tools: Tools, messages: Queue) -> None:
        self._tools, self._messages = tools, messages
        self._database = tools.database
        self._working: Stillness[tuple[str, int]] = Stillness(LEASE, ROUND)
        self._free: Stillness[tuple[str, int]] = Stillness(FORGOTTEN, ROUND)

    def beat(self) -> None:
        """Say that this worker lives, in the lanes that it works in. Raises Unavailable."""
        with self._database.write() as connection:
            rows.beat(connection, self._tools.worker, self._tools.lanes.now())

    def lanes(self) -> None:
        """Free the lanes of dead workers, and send messages for lanes that have none. Raises Unavailable."""
        try:
            with self._database.write() as connection:  # while nobody can write, nobody can beat either
                lanes = rows.lanes(connection)
        except Unavailable:
            self._working.forget()
            raise
        by_place = {(lane.job_id, lane.lane): lane for lane in lanes}
        taken = {place: lane.beat for place, lane in by_place.items() if lane.worker is not None}
        ours = self._tools.lanes.now()
        for place in self._working.observe(taken):
            # One may be ours without our knowing: the database took it for us, and its answer was lost.
            if by_place[place].worker != self._tools.worker or place not in ours:
                self._free_lane(by_place[place])
        waiting = {place: lane.beat for place, lane in by_place.items() if lane.worker is None}
        forgotten = self._free.observe(waiting)
        with suppress(RedisError, Unavailable):
            # As many messages as lanes: each has its own, or will be found by another's.
            if forgotten and self._messages.waiting() < len(forgotten):
                for job_id, number in forgotten:
                    if self._has_work(job_id):
                        self._messages.send(job_id, number)

    def resume(self) -> None:
        """Let paused Jobs go on whose tokens suffice now, or whose model is not paused any more. Raises Unavailable."""
        with self._database.read() as connection:
            paused = job_rows.active_jobs(connection, ("paused",))
        for job in paused:
            if not self._may_go_on(job):
                continue
            with self._database.write() as connection:
                resumed = job_rows.move(connection, job.id, "running", by=("paused",), reason=None, needs=None)
                lanes = rows.lanes(connection)
            if resumed:
                _log.info("job_resumed", job_id=job.id)
                for lane in lanes:
                    if lane.job_id == job.id and lane.worker is None:
                        self._messages.send(job.id, lane.lane)

    def ends(self) -> None:
        """End Jobs whose time is over, and erase what was kept long enough. Raises Unavailable."""
        now = datetime.now(UTC)
        with self._database.read() as connection:
            overdue = job_rows.overdue(connection, now)
            doomed = job_rows.stuck(connection, ERASING, now)
            given_up = job_rows.stuck(connection, PREPARING, now - _PREPARATION)
            files = job_files.overdue(connection, now)
        for job_id in given_up:
            with self._database.write() as connection:
                if job_rows.move(connection, job_id, ERASING, by=(PREPARING,), idempotency_key=None):
                    doomed.append(job_id)
        for job in overdue:
            with self._database.write() as connection:
                if job.final:
                    moved = job_rows.move(connection, job.id, ERASING, by=(job.status,), idempotency_key=None)
                else:
                    moved = job_rows.move(connection, job.id, "expired", by=UNFINISHED, at=now, reason=None, needs=None,
                                          expires_at=now + timedelta(days=self._tools.settings.job_days))
            if not moved:
                continue  # another worker was faster, or it was retried
            if job.final:
                doomed.append(job.id)
            elif job.batch is not None:
                late = sum(map(len, expired_lines(self._database, job.id)))
                with self._database.write() as connection:
                    job_rows.add_error_bytes(connection, job.id, late)
            _log.info("job_overdue", job_id=job.id, was=job.status)
        for job_id in doomed:
            erase(self._database, self._tools.storage, job_id)
        for file in files:
            self._tools.storage.remove(f"files/{file.id}")
            with self._database.write() as connection:
                job_files.remove(connection, file.id)

    def _free_lane(self, lane: Lane) -> None:
        # Looked up before others can claim what is put back: those hold tokens under the same prefixes.
        with self._database.read() as connection:
            holds = balances.holds_of(connection, f"{lane.job_id}.")
        with self._database.write() as connection:
            if not rows.leave_lane(connection, lane, if_still=True):
                return
            back = rows.put_all_back(connection, lane)
            rows.count_retries(connection, lane.job_id, len(back))
        _log.warning("job_lane_freed", job_id=lane.job_id, lane=lane.lane, requests=len(back))
        prefixes = tuple(hold_prefix(lane.job_id, place) for place, _ in back)
        for hold_id in holds:
            if hold_id.startswith(prefixes):
                with self._database.write() as connection:
                    drop(connection, hold_id)

    def _has_work(self, job_id: str) -> bool:
        with self._database.read() as connection:
            return rows.has_free_tasks(connection, job_id)

    def _may_go_on(self, job: Job) -> bool:
        if job.reason == "spend_cap":
            return not is_paused(self._database, job.model)
        with self._database.read() as connection:
            return balances.balance_of(connection, job.account_id).available >= (job.needs or 0)
