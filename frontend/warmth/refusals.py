"""What requests hear that get no place: why, and after how many seconds another try may help."""
from __future__ import annotations

from math import ceil

from frontend.errors import ApiError, ModelUnavailable, SpendCap, Unavailable
from frontend.warmth.records import Failure


def not_started(model: str, failure: Failure, seconds: float) -> ApiError:
    """The answer to all who waited for a load that failed or may not be, and to those who come before the next try."""
    if failure.paused:
        return SpendCap(f"New work on {model!r} is paused: a Spend limit was reached while the request waited for the "
                        "model to become Warm. It goes on next month, or once an admin raises the limit.",
                        headers={"x-should-retry": "false"})
    return ModelUnavailable(f"The model {model!r} could not be started: {failure.reason}. It is tried again later.",
                            headers=_retry(seconds))


def busy(message: str, seconds: float) -> Unavailable:
    """The answer to those for whom there is no room, or no time."""
    return Unavailable(message, headers=_retry(seconds))


def _retry(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, ceil(seconds)))}
