"""What people type into forms: read strictly, with a message for them where it can't be."""
from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from flask import request

from frontend.errors import InvalidRequest


def text(name: str, most: int = 2000) -> str:
    """A field's text. Raises InvalidRequest beyond `most` characters."""
    value = request.form.get(name, "").replace("\r\n", "\n").strip()
    if len(value) > most:
        raise InvalidRequest(f"At most {most} characters, please: these are {len(value)}.", name)
    return value


def whole(name: str, what: str) -> int:
    """A whole number; people may group its digits. Raises InvalidRequest."""
    value = request.form.get(name, "").strip()
    if not re.fullmatch(r"\d{1,18}|\d{1,3}([ ,_'’\u202f]\d{3}){1,5}", value, re.ASCII):
        raise InvalidRequest(f"{what} is a whole number, such as 1,000,000.", name)
    return int(re.sub(r"\D", "", value))


def number(name: str, what: str) -> float:
    """A number that is not negative. Raises InvalidRequest."""
    value = request.form.get(name, "").strip()
    if not re.fullmatch(r"(\d{1,12}|\d{1,3}(,\d{3}){1,3})(\.\d{1,6})?", value, re.ASCII):
        raise InvalidRequest(f"{what} is a number, such as 250 or 12.5.", name)
    return float(value.replace(",", ""))


def last_day(name: str) -> datetime | None:
    """The last second of a day (UTC), or None where the field is empty. Raises InvalidRequest."""
    value = request.form.get(name, "").strip()
    if not value:
        return None
    try:
        return datetime.combine(date.fromisoformat(value), datetime.min.time(), UTC) + timedelta(days=1, seconds=-1)
    except (ValueError, OverflowError):
        raise InvalidRequest("A date is written as 2027-01-31.", name) from None


def place(value: str | None) -> str:
    """A path of this site to go to next, or / for anything else, such as another site's address."""
    if value and re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", value):
        return value
    return "/"
