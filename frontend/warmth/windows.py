"""Warm windows: when in a week a model is to be Warm, by a place's clock: `Mon-Fri 08:00-18:00 Europe/Berlin`."""
from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WINDOW = re.compile(
    r"(?:(?P<days>[A-Z][A-Za-z,-]*) )?(?P<start>\d\d:\d\d)-(?P<end>\d\d:\d\d) (?P<zone>[A-Za-z0-9_/+-]+)", re.ASCII)
EXAMPLE = "Mon-Fri 08:00-18:00 Europe/Berlin"


@dataclass(frozen=True)
class Window:
    """Days of the week, Monday first, on which it begins; minutes of the day; and whose clock is meant.

    A window that ends no later than it begins ends on the next day.
    """

    days: frozenset[int]
    start: int
    end: int
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read a window; without days it is every day's. Raises ValueError with what is wrong."""
        found = _WINDOW.fullmatch(text)
        if not found:
            raise ValueError(f"{text!r} is no warm window: write such as {EXAMPLE!r}")
        try:
            zone = ZoneInfo(found["zone"])
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{found['zone']!r} is no time zone: write such as Europe/Berlin or UTC") from None
        days = _days(found["days"]) if found["days"] else frozenset(range(7))
        return cls(days, _minutes(found["start"]), _minutes(found["end"]), zone)

    def holds(self, moment: datetime) -> bool:
        """Whether a moment is within the window."""
        local = moment.astimezone(self.zone)
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        before = (local - timedelta(days=1)).weekday()
        return (day in self.days and minute >= self.start) or (before in self.days and minute < self.end)


def _days(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last or first) not in _DAYS:
            raise ValueError(f"{part!r} is no day of the week: write such as Mon, or Mon-Fri")
        start, end = _DAYS.index(first), _DAYS.index(last or first)
        found.update((start + step) % 7 for step in range((end - start) % 7 + 1))
    return frozenset(found)


def _minutes(text: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if hours > 24 or minutes > 59 or (hours == 24 and minutes):
        raise ValueError(f"{text!r} is no time of the day")
    return hours * 60 + minutes
