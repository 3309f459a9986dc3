"""A completion from the wait for a Warm model to the engine's first word; and how its client's going away ends that."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from frontend.accounts.caller import Caller
from frontend.api.parts import Parts
from frontend.budgets.booking import Booking
from frontend.budgets.holds import Order
from frontend.completions.plan import Plan
from frontend.completions.walk import Limits, Run
from frontend.errors import BudgetExceeded, SpendCap
from frontend.inference import NotWarm, Unreachable
from frontend.limits.slots import ClientLeft
from frontend.metrics import events
from frontend.spend.limits import is_paused
from frontend.warmth.places import Visit

#: Seconds between two tries of what needs a Triton while none answers.
AWAY_LOOK = 0.3
#: Seconds in which the keeper has started a tokenizer again whose process died.
RESTART = 20.0
T = TypeVar("T")


class Cancellation:
    """Cancels the work on the engine once, also when the client left before that work began."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self.fired = threading.Event()

    def arm(self, cancel: Callable[[], object]) -> None:
        """The work has begun, and `cancel` stops it."""
        self._cancel = cancel
        if self.fired.is_set():
            cancel()

    def fire(self) -> None:
        """The client has gone."""
        self.fired.set()
        if self._cancel is not None:
            self._cancel()


class Start:
    """The steps from the wait for a Warm model to the engine's first word, which a stream may take after its head."""

    booking: Booking

    def __init__(
        self, parts: Parts, stack: ExitStack, visit: Visit, plan: Plan, order: Order, limits: Limits, deadline: float,
        cancellation: Cancellation,
    ) -> None:
        self.visit, self.plan = visit, plan
        self._parts, self._stack, self._order = parts, stack, order
        self._limits, self._deadline, self._cancellation = limits, deadline, cancellation
        self._booked = False

    @property
    def lost(self) -> bool:
        """Whether the hold ended before the request did."""
        return self._booked and self.booking.lost

    @property
    def available(self) -> int:
        """The tokens that were left when these were held."""
        return self.booking.hold.available

    def lowered(self) -> str | None:
        """What the answer says of a max_tokens that had to be lowered."""
        wanted, applied = self.plan.max_tokens, self.booking.hold.max_tokens
        return f"requested={wanted}, applied={applied}, reason=tokens" if applied < wanted else None

    def refuse_what_would_be_refused_later(self, caller: Caller) -> None:
        """Raise BudgetExceeded or SpendCap before the wait where that is what would come of it."""
        short = self._order.need.fit(caller.available_tokens) is None
        if short or is_paused(self._parts.database, self._order.model):
            self._book()

    def begin(self) -> Run:
        """Hold the tokens and let the engine begin. If that was not there after all, wait for one that is."""
        self._book()
        plan = replace(self.plan, max_tokens=self.booking.hold.max_tokens)
        while True:
            # The time for which the model was not Warm does not count.
            timeout = max(self._deadline + self.visit.cold - time.monotonic(), 1.0)
            run = Run(plan, self._parts.inference, self.visit.endpoint, self._order.id,
                      replace(self._limits, timeout=timeout), self._cancellation.arm)
            self._stack.callback(run.close)
            self.booking.follow(run)
            try:
                run.begin()
                return run
            except (NotWarm, Unreachable):
                self._cancellation.arm(self.visit.give_up)
                self.visit.again()
                if not self.visit.wait(timeout):  # not longer, since tokens are held
                    raise

    def settle_unused(self, status: int) -> None:
        """Release what was held, if anything was, of a request that never began."""
        if self._booked:
            self.booking.settle(status, charged=False)

    def _book(self) -> None:
        if self._booked:
            return
        try:
            booking = Booking(self._parts.database, self._parts.leases, self._order, self._cancellation.fire)
        except (BudgetExceeded, SpendCap) as error:
            events.limit_hit("tokens" if isinstance(error, BudgetExceeded) else "spend")
            raise
        self.booking = self._stack.enter_context(booking)
        self._booked = True


def while_away(work: Callable[[], T], seconds: float, gone: threading.Event) -> tuple[T, float]:
    """Do something that needs a Triton, again for so many seconds while none answers, or while its tokenizer starts
    again. Returns for how many seconds that was so, too. Raises ClientLeft once `gone`."""
    began = time.monotonic()
    while True:
        tried = time.monotonic()
        try:
            return work(), tried - began
        except (Unreachable, NotWarm) as error:
            patience = seconds if isinstance(error, Unreachable) else min(seconds, RESTART)
            if time.monotonic() + AWAY_LOOK >= began + patience:
                raise
        if gone.wait(AWAY_LOOK):
            raise ClientLeft
