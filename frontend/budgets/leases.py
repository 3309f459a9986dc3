"""Keeps the holds of this process's running requests alive, and notes in the database what they have produced.

One thread for each process. A process that dies stops renewing; the keeper then settles its holds by their last
checkpoints, as it does with one that can't be settled otherwise. What could not be settled, because the database was
away, is settled here as soon as it is back.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from frontend.budgets.holds import Ending, Settled, settle
from frontend.db import Database
from frontend.db import balances as rows
from frontend.errors import Unavailable
from frontend.metrics import events

#: Seconds between two looks at what the requests have produced: at most so much is lost with a process.
CHECKPOINT = 0.25
#: A lease is renewed so often in its time.
RENEWALS = 5
_log = structlog.get_logger(__name__)


@dataclass
class _Running:
    """A hold of a request that runs here. `produced` is None until the engine has said something."""

    produced: Callable[[], int | None]
    on_lost: Callable[[], object]
    noted: int | None
    renewed: float


class Leases:
    """The holds of this process. Threads share it; a forked process must make its own."""

    def __init__(self, database: Database, lease: float) -> None:
        """`lease`: after so many seconds without a renewal the keeper takes a request for dead."""
        self._database = database
        self._every = lease / RENEWALS
        self._lock = threading.Condition()
        self._running: dict[str, _Running] = {}
        self._unsettled: dict[str, Ending] = {}
        self._thread: threading.Thread | None = None
        self._away = False

    def keep(self, hold_id: str, produced: Callable[[], int | None], on_lost: Callable[[], object]) -> None:
        """Renew a fresh hold's lease until it is settled. `on_lost` is called if the keeper has settled it before."""
        with self._lock:
            self._running[hold_id] = _Running(produced, on_lost, None, time.monotonic())
            self._wake()

    def forget(self, hold_id: str) -> None:
        """Renew a hold's lease no more: it is settled elsewhere."""
        with self._lock:
            self._running.pop(hold_id, None)

    def settle(self, hold_id: str, ending: Ending, later: Ending) -> Settled | None:
        """Settle a hold, once. Raises Unavailable where the database is away, and settles it as `later` says when that
        is back."""
        with self._lock:
            self._running.pop(hold_id, None)
        try:
            settled = settle(self._database, hold_id, ending)
        except Unavailable:
            with self._lock:
                self._unsettled[hold_id] = later
                self._wake()
            raise
        _count(settled)
        return settled

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
            self._thread.start()
        self._lock.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._running or self._unsettled):
                    self._lock.wait()
            time.sleep(CHECKPOINT)
            try:
                self._renew()  # first: of what is left to settle there may be a lot
                self._settle_what_is_left()
            except Unavailable:
                if not self._away:
                    _log.warning("leases_not_renewed")
                self._away = True
            except Exception as error:
                _log.error("leases_failed", exc_info=error)
            else:
                self._away = False

    def _settle_what_is_left(self) -> None:
        """As many as fit between two renewals. One that fails while the database answers would fail again, so it is
        given up: nobody renews its lease any more, and the keeper settles it by its last checkpoint."""
        until = time.monotonic() + CHECKPOINT
        with self._lock:
            unsettled = list(self._unsettled.items())
        for hold_id, ending in unsettled:
            try:
                _count(settle(self._database, hold_id, ending))
            except Unavailable:
                raise
            except Exception as error:
                _log.error("settlement_given_up", hold_id=hold_id, exc_info=error)
            with self._lock:
                del self._unsettled[hold_id]
            if time.monotonic() >= until:
                return

    def _renew(self) -> None:
        now = time.monotonic()
        with self._lock:
            running = [(hold_id, one, one.produced()) for hold_id, one in self._running.items()]
        due = {hold_id: (one, produced) for hold_id, one, produced in running
               if produced != one.noted or now - one.renewed >= self._every}
        if not due:
            return
        with self._database.write() as connection:
            renewed = rows.renew_holds(connection, [(hold_id, produced) for hold_id, (_, produced) in due.items()])
            missing = due.keys() - rows.open_among(connection, due.keys()) if renewed < len(due) else set()
        for one, produced in due.values():
            one.noted, one.renewed = produced, now
        with self._lock:
            # Most of those were settled by their own requests meanwhile.
            lost = {hold_id: self._running.pop(hold_id) for hold_id in missing & self._running.keys()}
        for hold_id, one in lost.items():
            _log.error("hold_lost", hold_id=hold_id)
            one.on_lost()


def _count(settled: Settled | None) -> None:
    if settled is not None and settled.record.charged:
        record = settled.record
        events.tokens(record.model, record.prompt_tokens, record.completion_tokens)
