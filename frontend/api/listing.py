"""What routes that list things share: query parameters that are checked, times as numbers, and pages."""
from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from flask import request

from frontend.errors import InvalidRequest, Problem


def query(*allowed: str) -> dict[str, str]:
    """The query parameters, each once and none unknown. Raises InvalidRequest."""
    problems = [Problem(f"The query parameter {name!r} does not exist; there is {_words(allowed)}.", name)
                for name in request.args if name not in allowed]
    problems += [Problem(f"{name} is given twice.", name) for name in allowed if len(request.args.getlist(name)) > 1]
    problems += [Problem(f"{name} is empty.", name) for name in allowed if request.args.get(name) == ""]
    problems += [Problem(f"{name} must not hold the character U+0000.", name)
                 for name in allowed if "\0" in request.args.get(name, "")]
    if problems:
        raise InvalidRequest.of(problems)
    return {name: request.args[name] for name in allowed if name in request.args}


def number(asked: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    """A parameter that is a whole number within bounds. Raises InvalidRequest."""
    text = asked.get(name)
    if text is None:
        return default
    if not (re.fullmatch(r"-?\d{1,10}", text, re.ASCII) and low <= int(text) <= high):
        raise InvalidRequest(f"{name} is a whole number from {low} to {high}.", name)
    return int(text)


def page(shown: Sequence[dict[str, Any]], limit: int, key: str = "id") -> dict[str, Any]:
    """OpenAI's list of up to `limit` things, of which `shown` may have one more."""
    data = list(shown[:limit])
    return {"object": "list", "data": data, "first_id": data[0][key] if data else None,
            "last_id": data[-1][key] if data else None, "has_more": len(shown) > limit}


def unix(moment: datetime | None) -> int | None:
    """A moment as OpenAI writes it: whole seconds since 1970."""
    return None if moment is None else int(moment.timestamp())


def _words(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names) or "none here"
