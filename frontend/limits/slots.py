"""Slots: how many requests of a key run at once, and how many wait for their turn, over all frontends.

A request has a ticket. It is active or waits, first come, first served. The slots of a process that died come back when
its beat has stood still for a while: no clock decides about it. A Redis that lost everything is told again at once by a
process that asks for a slot, and within a beat by all others.
"""
from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
from redis import Redis
from redis.exceptions import RedisError

from frontend.errors import DeadlineExceeded, Unavailable
from frontend.limits.rate import rate_limited
from frontend.limits.scripts import Scripts
from frontend.limits.store import patiently
from frontend.stillness import Stillness

#: Seconds between two beats, and for which a process may be still before its slots are given to others.
BEAT, LEASE = 1.0, 10.0
#: Seconds between two questions whether waiting requests may run, when another process's request has ended.
LOOK = 0.05
#: Seconds after which a request that found no room may try again.
RETRY = 1.0
#: What Redis says to a process that it does not know.
UNKNOWN = -2
_log = structlog.get_logger(__name__)


class ClientLeft(Exception):
    """The client went away while its request waited."""


@dataclass(frozen=True)
class Concurrency:
    """The most requests of one key that may be active, and that may wait for it."""

    active: int
    waiting: int


@dataclass
class _Ticket:
    name: str
    key_id: str
    limit: Concurrency
    active: bool = False
    left: bool = False
    called: threading.Event = field(default_factory=threading.Event)


class Slots:
    """The slots of this process's requests. Threads share it; a forked process must make its own."""

    def __init__(self, redis: Redis) -> None:
        self._scripts = Scripts(redis)
        self._process = secrets.token_hex(8)
        self._lock = threading.Condition()
        self._tickets: dict[str, _Ticket] = {}
        self._leaving: dict[str, _Ticket] = {}
        self._stillness: Stillness[str] = Stillness(LEASE, BEAT)
        self._thread: threading.Thread | None = None

    @contextmanager
    def slot(
        self, key_id: str, limit: Concurrency, timeout: float, on_wait: Callable[[Callable[[], object]], object]
    ) -> Iterator[None]:
        """Have a slot of a key while the block runs; wait for one first, up to `timeout` seconds.

        `on_wait` gets a function that ends the waiting from another thread. Raises RateLimited where too many wait
        already, ClientLeft, DeadlineExceeded, or Unavailable.
        """
        ticket = _Ticket(f"{self._process}:{secrets.token_hex(8)}", key_id, limit)
        self._enter(ticket)
        try:
            if not ticket.active:
                self._wait(ticket, timeout, on_wait)
            yield
        finally:
            self._leave(ticket)

    def _enter(self, ticket: _Ticket) -> None:
        with self._lock:
            if self._thread is None:  # also for who is refused: those who have the slots may be dead
                self._wake()
        limit = ticket.limit

        def enter() -> int:
            return self._scripts.enter(self._process, ticket.name, ticket.key_id, limit.active, limit.waiting)

        def come_in() -> int:
            if (place := enter()) == UNKNOWN:
                self._keep(self._all_tickets())
                self._scripts.beat(self._process)
                if (place := enter()) == UNKNOWN:
                    raise RedisError("lost everything again")
            return place

        try:
            place = patiently(come_in)
        except Unavailable:
            self._leave_later(ticket)  # Redis may have let it in, and only the answer was lost
            raise
        if place < 0:
            raise rate_limited(f"{limit.active} requests of this key run and {limit.waiting} wait already. "
                               "Wait for some of them.", RETRY)
        ticket.active = place > 0
        with self._lock:
            self._tickets[ticket.name] = ticket
            if not ticket.active:
                self._wake()

    def _wait(self, ticket: _Ticket, timeout: float, on_wait: Callable[[Callable[[], object]], object]) -> None:
        def leave() -> None:
            ticket.left = True
            ticket.called.set()

        on_wait(leave)
        if not ticket.called.wait(timeout):
            raise DeadlineExceeded(f"The request waited {timeout:.0f} s for others of its key.")
        if ticket.left:
            raise ClientLeft

    def _leave(self, ticket: _Ticket) -> None:
        with self._lock:
            del self._tickets[ticket.name]
        try:
            self._call(self._scripts.leave(self._process, ticket.name, ticket.key_id, ticket.limit.active))
        except RedisError:
            self._leave_later(ticket)

    def _leave_later(self, ticket: _Ticket) -> None:
        with self._lock:
            self._leaving[ticket.name] = ticket
            self._wake()

    def _call(self, names: list[str]) -> None:
        """Let those of our waiting tickets run whose turn it is."""
        with self._lock:
            for name in names:
                if ticket := self._tickets.get(name):
                    ticket.active = True
                    ticket.called.set()

    # The thread: beats, puts back what Redis lost, asks whose turn it is.

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slots", daemon=True)
            self._thread.start()
        self._lock.notify()

    def _run(self) -> None:
        beaten = 0.0
        while True:
            try:
                if time.monotonic() - beaten >= BEAT:
                    beaten = time.monotonic()
                    self._keep(self._all_tickets())
                    self._beat()
                tickets = self._all_tickets()
                waited_for = {ticket.key_id for ticket in tickets if not ticket.active}
                self._keep([ticket for ticket in tickets if ticket.key_id in waited_for])
            except RedisError:
                self._stillness.forget()  # nobody could beat
            except Exception as error:
                _log.error("slots_failed", exc_info=error)
            with self._lock:
                waiting = any(not ticket.active for ticket in self._tickets.values())
                self._lock.wait(LOOK if waiting else BEAT)

    def _all_tickets(self) -> list[_Ticket]:
        with self._lock:
            return list(self._tickets.values())

    def _beat(self) -> None:
        beats = self._scripts.beat(self._process)
        for process in self._stillness.observe(beats):
            if process != self._process and (freed := self._scripts.reap(process, beats[process])):
                _log.warning("slots_freed", process=process, slots=freed)
        with self._lock:
            leaving = list(self._leaving.values())
        for ticket in leaving:
            self._call(self._scripts.leave(self._process, ticket.name, ticket.key_id, ticket.limit.active))
            with self._lock:
                del self._leaving[ticket.name]

    def _keep(self, tickets: list[_Ticket]) -> None:
        by_key: dict[str, list[_Ticket]] = {}
        for ticket in tickets:
            by_key.setdefault(ticket.key_id, []).append(ticket)
        for key_id, ours in by_key.items():
            active = [ticket.name for ticket in ours if ticket.active]
            waiting = [ticket.name for ticket in ours if not ticket.active]
            self._call(self._scripts.keep(self._process, key_id, ours[-1].limit.active, active, waiting))
            with self._lock:
                left = [ticket for ticket in ours if ticket.name not in self._tickets]
            for ticket in left:  # meanwhile; it may just have been put back
                self._call(self._scripts.leave(self._process, ticket.name, key_id, ticket.limit.active))
