"""Redis, where all frontends count together; and how long a request waits for it."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from frontend.errors import Unavailable

#: Seconds that a request waits for Redis before it is refused. It is never let through uncounted.
PATIENCE = 2.0
#: Seconds for one attempt, and between two. A Redis that stands still gets one, one that is down many.
_ATTEMPT, _PAUSE = 1.9, 0.1
T = TypeVar("T")


def connect(url: str) -> Redis:
    """A client for threads to share; it connects when it is first used. Each attempt of it is a short one."""
    client: Redis = Redis.from_url(url, socket_timeout=_ATTEMPT, socket_connect_timeout=_ATTEMPT,
                                   retry=Retry(NoBackoff(), 0), max_connections=4096)
    return client


def patiently(call: Callable[[], T]) -> T:
    """Do something with Redis, again for up to PATIENCE seconds while that fails. Raises Unavailable.

    An attempt whose answer was lost may have counted: `call` is something that may happen twice.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except RedisError as error:
            if time.monotonic() + _PAUSE >= deadline:
                raise Unavailable("The request can't be counted now, so it is refused. Try again in a moment."
                                  ) from error
        time.sleep(_PAUSE)
