"""Counts how long engines are up, so that they can be paid for: each moment once, and only moments that were seen."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from frontend.db import Database
from frontend.db import spend as rows
from frontend.db.token_records import Uptime
from frontend.errors import ApiError
from frontend.inference import Inference, ModelCard
from frontend.spend.limits import MICROS

#: An engine that was up at two looks counts as up between them if they are at most so many seconds apart.
LONGEST_GAP = 30.0
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class _Up:
    """A model of which so many engines are up. By the observer's clock: up to when that is counted, and when it was
    last seen."""

    counted: float
    seen: float
    engines: int = 1


class UptimeMeter:
    """What one keeper has seen of engines. Time while nobody looked is not counted.

    Several keepers may look at once: the database says up to when each model is counted. An engine that is loading
    counts as up, since it has the GPUs already. A model with engines at several Tritons costs as much more an hour.
    """

    def __init__(
        self, database: Database, inference: Inference, models: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._inference = inference
        self._models = models
        self._clock = clock
        self._up: dict[str, _Up] = {}

    def round(self) -> None:
        """Look once. Raises Unavailable where the database is away; what was seen is then counted the next time."""
        try:
            cards = [card for card in self._inference.models() if card.id in self._models]
            engines = self._inference.engines([card.id for card in cards])
        except ApiError:
            self._up.clear()
            return
        at = self._clock()
        up = [card for card in cards if engines[card.id]]
        for model in self._up.keys() - {card.id for card in up}:
            del self._up[model]
        for card in up:
            known = self._up.get(card.id)
            if known is None or at - known.seen > LONGEST_GAP:
                known = self._up[card.id] = _Up(at, at)
            known.seen, known.engines = at, engines[card.id]
        for card in up:
            self._count(card, self._up[card.id])

    def _count(self, card: ModelCard, up: _Up) -> None:
        elapsed = up.seen - up.counted
        if elapsed <= 0:
            return
        with self._database.write() as connection:
            count_uptime(connection, card.id, card.price_per_hour * up.engines, timedelta(seconds=elapsed))
        up.counted = up.seen


def count_uptime(connection: Connection, model: str, dollars_per_hour: float, elapsed: timedelta) -> timedelta:
    """Count that a model's engine was up for the last `elapsed`, except for what is counted already.

    The interval ends now, by the database's clock. Returns what was added. Where that clock was set back, the mark lies
    in the future: it comes back to now, and this one interval is not counted.
    """
    mark = rows.lock_mark(connection, model, _BEGINNING)
    now = _whole_milliseconds(rows.now(connection))
    start = max(mark, _whole_milliseconds(now - elapsed))
    if start < now:
        price = round(dollars_per_hour * MICROS)
        for day, part in _by_day(start, now):
            milliseconds = part // timedelta(milliseconds=1)
            rows.add_uptime(connection, Uptime(model, day[:7], price, milliseconds))
            rows.add_day(connection, model, day, price, milliseconds)
    if mark != now:
        rows.move_mark(connection, model, now)
    return max(now - start, timedelta(0))


def _by_day(start: datetime, end: datetime) -> Iterator[tuple[str, timedelta]]:
    """An interval, split where days begin (UTC, as 2026-01-31)."""
    while start < end:
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        upto = min(midnight, end)
        yield start.strftime("%Y-%m-%d"), upto - start
        start = upto


def _whole_milliseconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
