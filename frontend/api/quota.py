"""What a caller may still do: requests are counted and get their turn here, and each answer's headers say the rest."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flask import Flask, Response, g

from frontend.accounts.caller import Caller
from frontend.api.parts import parts
from frontend.errors import RateLimited
from frontend.limits.rate import Window, rate_limited
from frontend.limits.slots import Concurrency
from frontend.metrics import events


@dataclass
class Quota:
    """What the headers of a caller's answer say: the requests of this minute, and the tokens that are available."""

    window: Window
    available_tokens: int


def admit(caller: Caller) -> None:
    """Count a request of a caller. Raises RateLimited, or Unavailable where it can't be counted."""
    per_minute = caller.limits.requests_per_minute or parts().settings.requests_per_minute
    allowed, window = parts().rate.start(caller.key_id, per_minute)
    g.quota = Quota(window, caller.available_tokens)
    if not allowed:
        events.limit_hit("requests_per_minute")
        raise rate_limited(f"This key may start {per_minute} requests a minute.", window.reset)


def note_available(tokens: int | None) -> None:
    """Tell the caller of the current request how many tokens are available now."""
    if tokens is not None:
        g.quota.available_tokens = tokens


@contextmanager
def turn(caller: Caller, timeout: float, on_wait: Callable[[Callable[[], object]], object]) -> Iterator[None]:
    """One of the caller's slots for as long as the block runs. As `Slots.slot`, and fair between people here."""
    settings, limits = parts().settings, caller.limits
    limit = Concurrency(limits.active or settings.active_requests,
                        settings.waiting_requests if limits.waiting is None else limits.waiting)
    slots, threads = parts().slots, parts().threads
    try:
        with threads.share(caller.account_id), slots.slot(caller.key_id, limit, timeout, on_wait):
            yield
    except RateLimited:
        events.limit_hit("concurrency")
        raise


def show_quotas(app: Flask) -> None:
    """Put what is left into the headers of every answer to a caller whose key was good."""

    @app.after_request
    def _show(answer: Response) -> Response:
        quota: Quota | None = g.get("quota")
        if quota is not None:
            window = quota.window
            answer.headers["x-ratelimit-limit-requests"] = str(window.limit)
            answer.headers["x-ratelimit-remaining-requests"] = str(window.remaining)
            answer.headers["x-ratelimit-reset-requests"] = f"{window.reset:.3f}s"
            answer.headers.setdefault("x-ratelimit-remaining-tokens", str(quota.available_tokens))
        return answer
