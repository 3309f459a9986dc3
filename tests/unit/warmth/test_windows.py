"""Warm windows, by the clocks of their places."""
from __future__ import annotations

from datetime import datetime

import pytest

from frontend.warmth.windows import Window


@pytest.mark.parametrize(("text", "moment", "holds"), [
    ("Mon-Fri 08:00-18:00 Europe/Berlin", "2027-01-04T07:00:00+00:00", True),  # a Monday, 8:00 in Berlin
    ("Mon-Fri 08:00-18:00 Europe/Berlin", "2027-01-04T06:59:00+00:00", False),
    ("Mon-Fri 08:00-18:00 Europe/Berlin", "2027-01-04T17:00:00+00:00", False),
    ("Mon-Fri 08:00-18:00 Europe/Berlin", "2027-07-05T06:00:00+00:00", True),  # summer time
    ("Mon-Fri 08:00-18:00 Europe/Berlin", "2027-01-03T10:00:00+00:00", False),  # a Sunday
    ("Sat,Sun 00:00-24:00 UTC", "2027-01-03T23:59:00+00:00", True),
    ("09:00-10:00 UTC", "2027-01-03T09:30:00+00:00", True),
    ("Fri 22:00-06:00 UTC", "2027-01-08T23:00:00+00:00", True),  # into Saturday
    ("Fri 22:00-06:00 UTC", "2027-01-09T05:59:00+00:00", True),
    ("Fri 22:00-06:00 UTC", "2027-01-09T06:00:00+00:00", False),
    ("Fri 22:00-06:00 UTC", "2027-01-08T05:00:00+00:00", False),
    ("Sat-Mon 00:00-24:00 UTC", "2027-01-04T12:00:00+00:00", True),
    ("Sat-Mon 00:00-24:00 UTC", "2027-01-05T12:00:00+00:00", False),
])
def test_a_window(text: str, moment: str, holds: bool) -> None:
    assert Window.parse(text).holds(datetime.fromisoformat(moment)) is holds


@pytest.mark.parametrize(("text", "problem"), [
    ("", "no warm window"), ("Mon-Fri 8-18 UTC", "no warm window"), ("Mon-Fri 08:00-18:00", "no warm window"),
    ("Mon-Fry 08:00-18:00 UTC", "'Mon-Fry' is no day"), ("08:00-25:00 UTC", "'25:00' is no time"),
    ("08:60-18:00 UTC", "'08:60' is no time"), ("08:00-18:00 Europe/Atlantis", "'Europe/Atlantis' is no time zone"),
    ("08:00-18:00 ../etc", "no warm window"),
])
def test_what_is_no_window(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Window.parse(text)
