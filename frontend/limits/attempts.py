"""How often somebody may try a password: an address gets few guesses at one account, and not many in all.

An account gets many more before it is closed to all addresses, so that few can lock a person out. Of IPv6 addresses a
person has as many as they like, so those of one network (/64) count as one.
"""
from __future__ import annotations

from ipaddress import IPv4Address, IPv6Network, ip_address

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter
from redis import Redis

from frontend.limits.store import patiently

#: Attempts of one address for one account, of one address, and for one account, in so many minutes or hours.
_OF_BOTH, _OF_ADDRESS, _OF_ACCOUNT = (
    RateLimitItemPerMinute(10, 10), RateLimitItemPerMinute(60, 10), RateLimitItemPerHour(200))


class Attempts:
    """Counts attempts in Redis. Threads may share it."""

    def __init__(self, url: str, redis: Redis) -> None:
        storage = RedisStorage(url.replace("unix://", "redis+unix://", 1), connection_pool=redis.connection_pool,
                               key_prefix="strata:attempts")
        self._limiter = MovingWindowRateLimiter(storage)

    def allowed(self, origin: str, email: str) -> bool:
        """Count an attempt, if it is within every limit; whether it is. Raises Unavailable where Redis is away."""
        home = _home(origin)
        return (self._hit(_OF_BOTH, "both", home, email) and self._hit(_OF_ADDRESS, "address", home)
                and self._hit(_OF_ACCOUNT, "account", email))

    def forget(self, origin: str, email: str) -> None:
        """Somebody knew the password: the next person at this address begins anew with this account."""
        patiently(lambda: self._limiter.clear(_OF_BOTH, "both", _home(origin), email))

    def _hit(self, item: RateLimitItem, *who: str) -> bool:
        return patiently(lambda: self._limiter.hit(item, *who))


def _home(origin: str) -> str:
    """What counts as one address."""
    try:
        address = ip_address(origin.partition("%")[0])
    except ValueError:
        return origin
    if isinstance(address, IPv4Address):
        return origin
    return str(address.ipv4_mapped or IPv6Network((int(address), 64), strict=False))
