"""The queue of Jobs: dramatiq's, in Redis. A message says that there may be work in a lane of a Job, and nothing else.

Messages may be lost with Redis, come twice, or come for a Job that has ended: the database knows better. Lanes that
stand still get a new message (frontend/jobs/duties.py).
"""
from __future__ import annotations

from collections.abc import Callable

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from redis import Redis

from frontend.limits.store import patiently

NAME = "jobs"
_NAMESPACE = "strata:queue"
#: Milliseconds after which the messages of a worker that says nothing are given to others.
_HEARTBEAT = 15_000
Work = Callable[[str, int], None]


class Queue:
    """One process's part in the queue. Threads may share it."""

    def __init__(self, redis: Redis, work: Work | None = None) -> None:
        """`work` is done for each message that this process gets: of a Job's id and the number of a lane."""
        self.broker = RedisBroker(client=redis, namespace=_NAMESPACE, heartbeat_timeout=_HEARTBEAT, middleware=[],
                                  dead_message_ttl=3_600_000)
        self._actor = dramatiq.actor(broker=self.broker, actor_name="work", queue_name=NAME)(work or _nobody)

    def send(self, job_id: str, lane: int) -> None:
        """Say that there is work in a lane. Raises Unavailable."""
        patiently(lambda: self._actor.send(job_id, lane))

    def waiting(self) -> int:
        """How many messages nobody has taken. Raises redis's errors."""
        return int(self.broker.client.llen(f"{_NAMESPACE}:{NAME}"))


def _nobody(job_id: str, lane: int) -> None:
    raise AssertionError("only workers work")
