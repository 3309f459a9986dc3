"""How many requests a key may start in a minute: in any sixty seconds, not in each minute of the clock."""
from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil

from limits import RateLimitItemPerMinute
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter
from redis import Redis

from frontend.errors import RateLimited
from frontend.limits.store import patiently


@dataclass(frozen=True)
class Window:
    """A key's last sixty seconds: the limit, what is left of it, and in how many seconds there is more."""

    limit: int
    remaining: int
    reset: float


class Rate:
    """Counts starts of requests in Redis. Threads may share it."""

    def __init__(self, url: str, redis: Redis) -> None:
        # The library wants an address of its own kind and takes our connections all the same.
        storage = RedisStorage(url.replace("unix://", "redis+unix://", 1), connection_pool=redis.connection_pool,
                               key_prefix="strata:rate")
        self._limiter = MovingWindowRateLimiter(storage)

    def start(self, key_id: str, per_minute: int) -> tuple[bool, Window]:
        """Count a start if it is within the limit; whether it is. Raises Unavailable where Redis is away.

        A start that is refused does not count, so whoever keeps trying gets through when there is room. Another limit
        than before begins anew: the library counts for each by itself.
        """
        item = RateLimitItemPerMinute(per_minute)
        allowed = patiently(lambda: self._limiter.hit(item, key_id))
        stats = patiently(lambda: self._limiter.get_window_stats(item, key_id))
        reset = max(stats.reset_time - time.time(), 0.0) if stats.remaining < per_minute else 0.0
        return allowed, Window(per_minute, stats.remaining, reset)


def rate_limited(message: str, seconds: float) -> RateLimited:
    """The refusal that says when to try again."""
    return RateLimited(message, headers={"Retry-After": str(max(1, ceil(seconds))),
                                         "retry-after-ms": str(max(1, ceil(seconds * 1000)))})
