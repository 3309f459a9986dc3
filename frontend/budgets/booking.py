"""A request's tokens from the hold to the charge: what it may use, what it has used, and how it ended."""
from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from frontend.budgets.holds import Ending, Hold, Order, take_hold
from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.errors import ApiError, Unavailable

#: What the record of a request says whose client did not wait for its answer.
CLIENT_GONE = 499


class Work(Protocol):
    """What the engine has done so far: whether it has said anything, how many completion tokens there are, and how many
    bytes of Activations."""

    begun: bool
    completion_tokens: int

    @property
    def activation_bytes(self) -> int: ...


class Booking:
    """A hold that is settled when the block ends, if not before, whatever ends it. Use it as a context manager.

    Who is answered pays for what was produced, and so does who leaves. An error in place of an answer costs nothing.
    """

    def __init__(self, database: Database, leases: Leases, order: Order, on_lost: Callable[[], object]) -> None:
        """Take the hold. `on_lost` is called from another thread if the hold ends before the request does. Raises
        BudgetExceeded, SpendCap, Unavailable."""
        self.lost = False
        self._leases = leases
        self._started = time.perf_counter()
        self._on_lost = on_lost
        self._work: Work | None = None
        self._settled = False
        self.hold: Hold = take_hold(database, order)
        leases.keep(self.hold.id, self._produced, self._lose)

    def follow(self, work: Work) -> None:
        """Charge for this work: it begins now."""
        self._work = work

    def settle(self, status: int, charged: bool = True, delivered: bool = True) -> int | None:
        """Charge and release, once. Returns what is available then, None if it was settled before.

        Raises Unavailable where the database is away; it is done later then, and costs nothing unless the answer was
        `delivered` by now.
        """
        if self._settled:
            return None
        self._settled = True
        later = self._ending(status, charged) if delivered else self._ending(Unavailable.status, charged=False)
        settled = self._leases.settle(self.hold.id, self._ending(status, charged), later)
        return settled.available if settled else None

    def __enter__(self) -> Booking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with suppress(Unavailable):
            if error is None:
                self.settle(CLIENT_GONE)
            else:
                self.settle(error.status if isinstance(error, ApiError) else 500, charged=False)

    def _ending(self, status: int, charged: bool) -> Ending:
        work = self._work
        return Ending(
            status, work is not None and work.begun, charged, work.completion_tokens if work else 0,
            round((time.perf_counter() - self._started) * 1000), work.activation_bytes if work else 0)

    def _produced(self) -> int | None:
        return self._work.completion_tokens if self._work and self._work.begun else None

    def _lose(self) -> None:
        self.lost = True
        self._on_lost()
