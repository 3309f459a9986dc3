"""What the keeper and the frontends tell each other through Redis about models: failures, loads, drained Tritons."""
from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from statistics import median
from typing import cast

from redis import Redis

_FAILURES, _BREAKERS, _LOADING = "strata:failures", "strata:breakers", "strata:loading-since"
_DRAINED, _ASKED, _CLOSED = "strata:drained", "strata:asked", "strata:places:closed"
_SEQUENCE, _LAST_USED, _LOADS_ENDED = "strata:places:sequence", "strata:places:last-used", "strata:loads-ended"
#: Which keeper works, and when it last did.
KEEPER = "strata:keeper"
_PAUSED = "new work on it is paused by the Spend limit"
#: Loads whose times are remembered.
_LOADS = 5


@dataclass(frozen=True)
class Failure:
    """A model that could not be started: why, in words for users; in what order with tickets; and until when nobody
    tries again, by Redis's clock, after so many attempts. `paused`: it was not tried, because of the Spend limit.
    `excused`: nobody hears of it, since its Triton went away meanwhile and is waited for."""

    reason: str
    sequence: int
    until: float
    attempt: int
    paused: bool = False
    excused: bool = False


class Records:
    """All that is remembered. Raises redis's errors."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def now(self) -> float:
        """Seconds by Redis's clock, which all share."""
        seconds, micros = self._redis.time()
        return seconds + micros / 1e6

    def keeper_seen(self) -> float | None:
        """How many seconds ago a keeper worked; None where none ever did."""
        at = cast("bytes | None", self._redis.hget(KEEPER, "at"))
        return None if at is None else max(self.now() - float(at), 0.0)

    # Failures. A model's is what its waiters hear; an endpoint's is the breaker, which the keeper heeds.

    def fail(
        self, model: str, endpoint: str, reason: str, pause: float, attempt: int, excused: bool = False
    ) -> Failure:
        """Note that a load failed, and open the breaker of this model and endpoint for so many seconds."""
        sequence = self._redis.incr(_SEQUENCE)
        self._redis.hincrby(_LOADS_ENDED, f"{model}|failed")
        failure = Failure(reason, sequence, self.now() + pause, attempt, excused=excused)
        self._redis.hset(_BREAKERS, f"{model}@{endpoint}", json.dumps(asdict(failure)))
        return failure

    def report(self, model: str, failure: Failure) -> None:
        """Tell those who wait for a model, and came before the failure's sequence, that it can't be started."""
        self._redis.hset(_FAILURES, model, json.dumps(asdict(failure)))

    def pause(self, model: str, seconds: float) -> None:
        """Tell all who wait for a model that the Spend limit forbids to start it now."""
        sequence = self._redis.incr(_SEQUENCE)
        self.report(model, Failure(_PAUSED, sequence, self.now() + seconds, 0, paused=True))

    def succeed(self, model: str, endpoint: str, seconds: float | None) -> None:
        """Note that a load went well, and what it took; None if there was nothing to load."""
        self._redis.hdel(_BREAKERS, f"{model}@{endpoint}")
        self._redis.hdel(_FAILURES, model)
        self._redis.hset(_LAST_USED, f"{model}@{endpoint}", int(self.now()))
        if seconds is not None:
            self._redis.hincrby(_LOADS_ENDED, f"{model}|succeeded")
            times = f"strata:load-seconds:{model}"
            self._redis.lpush(times, seconds)
            self._redis.ltrim(times, 0, _LOADS - 1)

    def failures(self) -> dict[str, Failure]:
        """The last failure of each model that could not be started."""
        return self._read(_FAILURES)

    def breakers(self) -> dict[str, Failure]:
        """The same by `model@endpoint`."""
        return self._read(_BREAKERS)

    # Loads

    def loading(self, model: str, endpoint: str) -> None:
        """A load begins."""
        self._redis.hset(_LOADING, f"{model}@{endpoint}", self.now())

    def loaded(self, model: str, endpoint: str) -> None:
        """It has ended."""
        self._redis.hdel(_LOADING, f"{model}@{endpoint}")

    def loads(self) -> dict[tuple[str, str], int]:
        """How many loads of each model "succeeded" and "failed"."""
        found = cast("dict[bytes, bytes]", self._redis.hgetall(_LOADS_ENDED))
        return {(model, outcome): int(count) for name, count in found.items()
                for model, _, outcome in [name.decode().rpartition("|")]}

    def estimate(self, model: str, state: str) -> float | None:
        """Seconds until a model is Warm, from its last loads; None where there were none."""
        if state == "warm":
            return 0.0
        times = [float(one) for one in cast("list[bytes]", self._redis.lrange(f"strata:load-seconds:{model}", 0, -1))]
        if not times:
            return None
        usual = median(times)
        since = [float(at) for place, at in cast("dict[bytes, bytes]", self._redis.hgetall(_LOADING)).items()
                 if place.decode().startswith(f"{model}@")]
        return round(max(usual - (self.now() - min(since)), 1.0) if since else usual, 1)

    # Who waits, and what is used

    def waiting(self, models: Collection[str]) -> dict[str, int]:
        """How many requests wait for each model."""
        return {model: self._redis.zcard(f"strata:places:{model}:queue") for model in models}

    def active(self, model: str, endpoint: str) -> int:
        """How many requests a model has at an endpoint."""
        return self._redis.scard(f"strata:places:{model}@{endpoint}")

    def last_used(self) -> dict[str, float]:
        """When each `model@endpoint` was last used, by Redis's clock."""
        found = cast("dict[bytes, bytes]", self._redis.hgetall(_LAST_USED))
        return {place.decode(): float(at) for place, at in found.items()}

    def note_use(self, model: str, endpoint: str) -> None:
        """Take now for the last use, of which nothing is known: else nobody could tell how long ago it was."""
        self._redis.hsetnx(_LAST_USED, f"{model}@{endpoint}", int(self.now()))

    # What an admin wants

    def ask(self, model: str, wish: str) -> None:
        """Wish for a model to be loaded ("load") or unloaded ("unload"): the keeper sees to it."""
        self._redis.hset(_ASKED, model, wish)

    def granted(self, model: str) -> None:
        """The wish is fulfilled, or can't be."""
        self._redis.hdel(_ASKED, model)

    def asked(self) -> dict[str, str]:
        """The wishes by model."""
        found = cast("dict[bytes, bytes]", self._redis.hgetall(_ASKED))
        return {model.decode(): wish.decode() for model, wish in found.items()}

    def drain(self, endpoint: str, drained: bool) -> None:
        """Send no new requests to a Triton, or send them again."""
        if drained:
            self._redis.sadd(_DRAINED, endpoint)
        else:
            self._redis.srem(_DRAINED, endpoint)

    def drained(self) -> set[str]:
        """The Tritons that get no new requests."""
        return {endpoint.decode() for endpoint in cast("set[bytes]", self._redis.smembers(_DRAINED))}

    # Models that are closed at an endpoint, since they are being unloaded

    def closed(self) -> set[str]:
        """Every `model@endpoint` that is."""
        return {place.decode() for place in cast("dict[bytes, bytes]", self._redis.hgetall(_CLOSED))}

    def open(self, model: str, endpoint: str) -> None:
        """Let requests in again, once it is loaded again."""
        self._redis.hdel(_CLOSED, f"{model}@{endpoint}")

    def _read(self, key: str) -> dict[str, Failure]:
        found = cast("dict[bytes, bytes]", self._redis.hgetall(key))
        return {name.decode(): Failure(**json.loads(text)) for name, text in found.items()}
