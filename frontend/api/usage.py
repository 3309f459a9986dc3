"""GET /v1/usage: the caller's tokens, and what was used of them by day and model."""
from __future__ import annotations

import re
from dataclasses import asdict

from flask import Blueprint, Response, request

from frontend.api.answers import json_answer
from frontend.api.auth import require_caller
from frontend.api.parts import parts
from frontend.budgets.usage import usage
from frontend.errors import InvalidRequest, Problem

#: How many days the answer covers, today included: unless told, and at most.
DAYS, MOST_DAYS = 30, 366

bp = Blueprint("usage", __name__)


@bp.get("/v1/usage")
def get_usage() -> Response:
    """All keys of the caller's account together. Days are in UTC; those without requests are left out."""
    caller = require_caller("usage:read")
    found = usage(parts().database, caller.account_id, _days())
    return json_answer({
        "object": "usage", "tokens": asdict(found.balance),
        "days": [{**asdict(day), "total_tokens": day.prompt_tokens + day.completion_tokens} for day in found.days],
    })


def _days() -> int:
    problems = [Problem(f"The query parameter {name!r} does not exist; there is 'days'.", name)
                for name in request.args if name != "days"]
    values = request.args.getlist("days")
    if len(values) > 1:
        problems.append(Problem("days is given twice.", "days"))
    elif values and not (re.fullmatch(r"[1-9]\d{0,2}", values[0], re.ASCII) and int(values[0]) <= MOST_DAYS):
        problems.append(Problem(f"days is a whole number from 1 to {MOST_DAYS}.", "days"))
    if problems:
        raise InvalidRequest.of(problems)
    return int(values[0]) if values else DAYS
