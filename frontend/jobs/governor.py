"""Interactive first: how many requests of Jobs may be at a model, given who else is there.

Alone, Jobs may fill most of an engine's batch, and leave some of it so that a person's request never waits for its
turn. Beside people they take a few places, or more where that makes steps hardly longer (frontend/jobs/pace.py), since
a person's first token waits for a step. While a person's request waits for its turn they begin nothing.
"""
from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from frontend.db import Database
from frontend.db import job_work as rows
from frontend.errors import ApiError
from frontend.inference import ModelCard
from frontend.jobs.pace import Pace
from frontend.warmth.places import Places
from frontend.warmth.scripts import Crowd

#: Parts of an engine's places: for Jobs that are alone, and for those beside people.
ALONE, BESIDE = 3 / 4, 1 / 32
#: Seconds for which a person who asked counts as there.
PRESENCE = 5.0
#: Seconds between two looks at a model's places, and at who works.
LOOK, CENSUS = 0.1, 1.0


def allowed(card: ModelCard, engines: int, crowd: Crowd, pace: Pace) -> int:
    """How many requests of Jobs may be at a model's engines together, beside people's."""
    places = card.max_requests * max(engines, 1)
    alone = max(1, int(places * ALONE))
    if crowd.waiting:
        return 0
    if crowd.active or crowd.asked_ago < PRESENCE:
        return pace.beside(max(1, int(places * BESIDE)), alone)
    pace.forget()
    return alone


@dataclass
class _Seen:
    """A model at the last look: how many requests of Jobs may be there, and how many of other processes are."""

    at: float = float("-inf")
    allowed: int = 1
    others: int = 0
    ours: int = 0
    pace: Pace = field(default_factory=Pace)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Governor:
    """What this process's lanes may begin. Threads share it."""

    def __init__(self, database: Database, places: Places, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._places, self._clock = database, places, clock
        self._models: dict[str, _Seen] = {}
        self._lock = threading.Lock()
        self._census: list[tuple[str, str, str]] = []
        self._counted = float("-inf")

    def take(self, card: ModelCard, account_id: str, job_id: str, mine: int, most: int) -> int:
        """Take up to `most` places for a lane that has `mine`. Returns how many it may begin now."""
        seen = self._look(card)
        with seen.lock:
            share = self._share(seen.allowed, card.id, account_id, job_id)
            room = min(seen.allowed - seen.others - seen.ours, share - mine, most)
            seen.ours += max(room, 0)
            return max(room, 0)

    def give_back(self, model: str, places: int = 1) -> None:
        """So many have ended, or were not begun."""
        seen = self._models[model]
        with seen.lock:
            seen.ours -= places

    def there(self, model: str) -> int:
        """How many requests of Jobs are at a model now, as far as is known."""
        seen = self._models[model]
        return seen.ours + seen.others

    def observe(self, model: str, among: int, seconds: float, tokens: int) -> None:
        """A request that began when so many were there took so many seconds for so many tokens of each choice."""
        seen = self._models[model]
        with seen.lock:
            seen.pace.observe(among, seconds, tokens)

    def _look(self, card: ModelCard) -> _Seen:
        with self._lock:
            seen = self._models.setdefault(card.id, _Seen())
        with seen.lock:
            if self._clock() - seen.at < LOOK:
                return seen
            seen.at = self._clock()
            try:
                crowd, engines = self._places.crowd(card.id), self._places.engines(card.id)
            except (RedisError, ApiError):
                return seen  # as it was: who begins something will hear what is wrong
            if engines:
                seen.allowed = allowed(card, engines, crowd, seen.pace)
            else:
                seen.allowed = 1  # it makes the model Warm
            seen.others = max(crowd.of_jobs - seen.ours, 0)
            return seen

    def _share(self, places: int, model: str, account_id: str, job_id: str) -> int:
        """A lane's part of the places: people share them alike, then each one's Jobs, then each Job's lanes."""
        if self._clock() - self._counted >= CENSUS:
            self._counted = self._clock()
            try:
                with self._database.read() as connection:
                    self._census = rows.crowd(connection)
            except ApiError:
                pass
        here = [(account, job) for name, account, job in self._census if name == model]
        people = {account for account, _ in here} | {account_id}
        jobs = {job for account, job in here if account == account_id} | {job_id}
        lanes = max(Counter(job for _, job in here)[job_id], 1)
        return max(1, -(-places // (len(people) * len(jobs) * lanes)))
