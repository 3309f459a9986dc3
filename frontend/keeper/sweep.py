"""Settles the holds whose processes died, by what their last checkpoints say was produced."""
from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from frontend.budgets.holds import settle_abandoned
from frontend.db import Database
from frontend.db import balances as rows
from frontend.errors import Unavailable
from frontend.stillness import Stillness

_log = structlog.get_logger(__name__)


class Sweep:
    """What the keeper has seen of leases. Several keepers may sweep at once: a hold is settled once."""

    def __init__(
        self, database: Database, lease: float, every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._stillness: Stillness[str] = Stillness(lease, every, clock)

    def round(self) -> int:
        """Look once. Returns how many holds it settled. Raises Unavailable, or why one could not be settled once the
        others are."""
        settled = 0
        failed: Exception | None = None
        try:
            # In a transaction that may write: while nobody can write, nobody can renew a lease either, and no time of
            # it may pass.
            with self._database.write() as connection:
                beats = rows.beats(connection)
            for hold_id in self._stillness.observe(beats):
                try:
                    done = settle_abandoned(self._database, hold_id, beats[hold_id])
                except Unavailable:
                    raise
                except Exception as error:  # the others are settled all the same, and this one is tried again
                    failed = error
                    continue
                if done is not None:
                    settled += 1
                    _log.warning("hold_expired", hold_id=hold_id, account_id=done.record.account_id,
                                 model=done.record.model, charged=done.record.charged)
        except Unavailable:
            self._stillness.forget()
            raise
        if failed is not None:
            raise failed
        return settled
