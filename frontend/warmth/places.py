"""Places: a request has one at an endpoint while it uses a model there, or waits for one, fairly between people.

A model that has a request is never unloaded, and a request is let in only where its model is Warm. So a request for a
Cold model waits, which makes the keeper load it, and so does one that the engines have no room for. The places of a
process that died come back when its beat has stood still for a while. A Redis that lost everything is told again.
"""
from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from redis import Redis
from redis.exceptions import RedisError

from frontend.errors import ApiError, DeadlineExceeded, ModelUnavailable, Unavailable
from frontend.inference import Inference, ModelCard
from frontend.limits.slots import BEAT, LEASE, ClientLeft
from frontend.limits.store import patiently
from frontend.stillness import Stillness
from frontend.warmth.records import Records
from frontend.warmth.refusals import busy, not_started
from frontend.warmth.scripts import Crowd, Scripts, Ticket
from frontend.warmth.view import View

#: Seconds between two looks at whose turn it is, and at whether a model is Warm now.
LOOK, COLD_LOOK = 0.05, 0.3
#: Seconds after which a request that found no room may try again.
RETRY = 2.0
_log = structlog.get_logger(__name__)


class Visit:
    """One request at a model: it waits, then has a place at an `endpoint`, until it leaves."""

    def __init__(self, places: Places, card: ModelCard, account_id: str, timeout: float) -> None:
        self.card = card
        self.account_id = account_id
        self.timeout = timeout
        self.name = ""
        self.endpoint = ""
        #: Seconds that it waited while the model was not Warm, and for its turn.
        self.cold, self.queued = 0.0, 0.0
        self.sequence = 0
        self.looked = time.monotonic()
        self.error: ApiError | None = None
        self.called = threading.Event()
        self._places = places
        self._gone = False
        self._placed: float | None = None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to so many seconds, without end if None, for a place where the model is Warm; whether it has one.

        Raises ModelUnavailable, DeadlineExceeded, Unavailable, or ClientLeft after `give_up`.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._placed is None:
            if not self._gone and not self.called.wait(
                    None if deadline is None else max(deadline - time.monotonic(), 0)):
                return False
            if self._gone:
                raise ClientLeft
            if self.error is not None:
                raise self.error
            if self._places.confirm(self):
                self._placed = time.monotonic()
        return True

    def give_up(self) -> None:
        """Nobody waits for it any more. May be called from another thread."""
        self._gone = True
        self.called.set()

    def again(self) -> None:
        """The engine was not there after all: wait for one that is. Raises Unavailable."""
        self._placed = None
        self._places.move(self)

    @property
    def ticket(self) -> Ticket:
        """What Redis knows of it."""
        return Ticket(self.name, self.card.id, self.account_id, self.endpoint)

    @property
    def seconds(self) -> float | None:
        """How long it has had its place."""
        return None if self._placed is None else time.monotonic() - self._placed


class Places:
    """The places of this process's requests. Threads share it; a forked process must make its own."""

    def __init__(self, redis: Redis, inference: Inference, load_timeout: float, of_jobs: bool = False) -> None:
        """`load_timeout`: seconds that a request waits for a model to become Warm. `of_jobs`: they are no person's, who
        waits for the answer, but those of Jobs."""
        self._scripts, self._records, self._view = Scripts(redis), Records(redis), View(inference)
        self._load_timeout = load_timeout
        self._process = ("job-" if of_jobs else "") + secrets.token_hex(8)
        self._lock = threading.Condition()
        self._visits: dict[str, Visit] = {}
        self._leaving: dict[str, tuple[Ticket, ModelCard]] = {}
        self._stillness: Stillness[str] = Stillness(LEASE, BEAT)
        self._thread: threading.Thread | None = None

    @contextmanager
    def visit(self, card: ModelCard, account_id: str, timeout: float) -> Iterator[Visit]:
        """Come to a model; the visit may have to wait, for its turn up to `timeout` seconds. It leaves with the block.

        Raises Unavailable where too many wait or its turn would come too late, ModelUnavailable where the model could
        not be started a moment ago.
        """
        visit = Visit(self, card, account_id, timeout)
        self._enter(visit, card.max_queue, timeout)
        try:
            yield visit
        finally:
            self._leave(visit)

    def is_warm(self, model: str) -> bool:
        """Whether a model that is served is Warm anywhere, as far as was seen a moment ago."""
        return bool(self._view.warm(model))

    def crowd(self, model: str) -> Crowd:
        """Who is at a model, and who waits for it. Raises redis's errors, or Unavailable."""
        return self._scripts.crowd(model, self._view.warm(model))

    def engines(self, model: str) -> int:
        """How many engines of a model are Warm, as far as was seen a moment ago."""
        return len(self._view.warm(model))

    def confirm(self, visit: Visit) -> bool:
        """Whether the model is Warm where the visit is. If it is not, it waits again."""
        if self._view.confirm(visit.card.id, visit.endpoint):
            return True
        self.move(visit)
        return False

    def move(self, visit: Visit) -> None:
        """Give the place of a visit back and let it wait for another. It has been let in once: it is not refused now.
        """
        sequence = visit.sequence
        self._leave(visit)
        visit.called.clear()
        visit.endpoint = ""
        self._enter(visit, 10**9, 10**9)
        visit.sequence = sequence

    def _enter(self, visit: Visit, waiting: int, patience: float) -> None:
        with self._lock:
            if self._thread is None:  # also for who is refused: those who have the places may be dead
                self._wake()
        card, warm = visit.card, self._view.warm(visit.card.id)
        visit.name = f"{self._process}:{secrets.token_hex(8)}"

        def come_in() -> None:
            for _ in range(2):
                entered = self._scripts.enter(
                    self._process, visit.ticket, card.max_requests, waiting, patience, warm)
                if entered.refused != "unknown":
                    break
                self._keep()
            else:
                raise RedisError("lost everything again")
            if entered.refused == "full":
                raise busy(f"Too many requests for {card.id!r} wait already.", RETRY)
            if entered.refused:
                seconds = float(entered.refused)
                raise busy(f"The request's turn at {card.id!r} would come in about {seconds:.0f} s, after its "
                            "deadline.", seconds - patience)
            visit.endpoint, visit.sequence = entered.endpoint, entered.sequence
            if not warm and (failure := self._records.failures().get(card.id)):
                seconds = failure.until - self._records.now()
                if seconds > 0:
                    self._scripts.leave(self._process, visit.ticket, card.max_requests, None, warm)
                    raise not_started(card.id, failure, seconds)

        try:
            patiently(come_in)
        except Unavailable as error:
            if isinstance(error.__cause__, RedisError):  # it may be in, and only the answer was lost
                self._leave_later(visit)
            raise
        visit.looked = time.monotonic()
        with self._lock:
            self._visits[visit.name] = visit
            if visit.endpoint:
                visit.called.set()
            if not visit.endpoint:
                self._wake()

    def _leave(self, visit: Visit) -> None:
        with self._lock:
            if self._visits.pop(visit.name, None) is None:
                return  # it could not move
        try:
            self._take_out(visit.ticket, visit.card, visit.seconds)
        except RedisError:
            self._leave_later(visit)
        with self._lock:
            if any(not other.endpoint for other in self._visits.values()):
                self._lock.notify()  # it may be their turn

    def _take_out(self, ticket: Ticket, card: ModelCard, seconds: float | None = None) -> None:
        self._scripts.leave(self._process, ticket, card.max_requests, seconds, self._view.warm(card.id))

    def _leave_later(self, visit: Visit) -> None:
        with self._lock:
            self._leaving[visit.name] = visit.ticket, visit.card
            self._wake()

    # The thread: beats, looks at models and at whose turn it is, and says so.

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="places", daemon=True)
            self._thread.start()
        self._lock.notify()

    def _run(self) -> None:
        beaten = 0.0
        while True:
            pause = BEAT
            try:
                if time.monotonic() - beaten >= BEAT:
                    beaten = time.monotonic()
                    self._keep()
                    self._reap()
                pause = self._look()
                self._view.probe()
            except RedisError:
                self._stillness.forget()  # nobody could beat
            except Exception as error:
                _log.error("places_failed", exc_info=error)
            with self._lock:
                self._lock.wait(pause)

    def _look(self) -> float:
        """See which visits have a place now, and which must not wait any longer. Returns when to look again."""
        with self._lock:
            visits = list(self._visits.values())
        if not visits:
            return BEAT
        waiting: dict[str, list[Visit]] = {}
        for visit in visits:
            if not visit.endpoint:
                waiting.setdefault(visit.card.id, []).append(visit)
        self._view.refresh(older_than=COLD_LOOK if waiting else BEAT)
        pause = COLD_LOOK if waiting else BEAT
        for model, ours in waiting.items():
            warm = self._view.warm(model)
            names = [visit.name for visit in ours]
            found = self._scripts.look(self._process, model, ours[0].card.max_requests, names, warm)
            for visit, endpoint in zip(ours, found, strict=True):
                self._tell(visit, endpoint, bool(warm))
            if warm:
                pause = LOOK
            elif failure := self._records.failures().get(model):
                seconds = failure.until - self._records.now()
                for visit in ours:
                    if failure.sequence > visit.sequence:
                        self._refuse(visit, not_started(model, failure, seconds))
        return pause

    def _tell(self, visit: Visit, endpoint: str, warm: bool) -> None:
        now = time.monotonic()
        visit.cold += 0.0 if warm else now - visit.looked
        visit.queued += now - visit.looked if warm else 0.0
        visit.looked = now
        if endpoint:
            visit.endpoint = endpoint
            visit.called.set()
        elif visit.cold > self._load_timeout:
            self._refuse(visit, ModelUnavailable(
                f"The model {visit.card.id!r} did not become Warm within {self._load_timeout:.0f} s."))
        elif visit.queued > visit.timeout:
            self._refuse(visit, DeadlineExceeded(f"The request waited {visit.timeout:.0f} s for its turn."))

    @staticmethod
    def _refuse(visit: Visit, error: ApiError) -> None:
        visit.error = error
        visit.called.set()

    def _keep(self) -> None:
        with self._lock:
            visits = list(self._visits.values())
        if self._scripts.keep(self._process, [visit.ticket for visit in visits]):
            for visit in visits:
                visit.sequence = 0
            with self._lock:
                left = [visit for visit in visits if visit.name not in self._visits]
            for visit in left:  # meanwhile; it may just have been put back
                self._take_out(visit.ticket, visit.card)

    def _reap(self) -> None:
        beats = self._scripts.beats()
        for process in self._stillness.observe(beats):
            if process != self._process and (freed := self._scripts.reap(process, beats[process])):
                _log.warning("places_freed", process=process, places=freed)
        with self._lock:
            leaving = list(self._leaving.values())
        for ticket, card in leaving:
            self._take_out(ticket, card)
            with self._lock:
                del self._leaving[ticket.name]
