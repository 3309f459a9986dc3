"""The Usage page: tokens, what was used by day, model and key, and requests for more."""
from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from flask import Blueprint, Response, make_response, redirect, render_template, request
from markupsafe import Markup

from frontend.accounts.api_keys import list_keys
from frontend.api.parts import parts
from frontend.budgets.grants import list_grants
from frontend.budgets.token_requests import ask_for_tokens, list_requests
from frontend.budgets.usage import export_usage, note_export, usage, usage_by_key, write_csv
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.token_records import Balance, DayUsage
from frontend.errors import InvalidRequest
from frontend.web import forms
from frontend.web.charts import meter, stacked_bars
from frontend.web.visitor import actor, require_person
from frontend.web.workbench import WORKBENCH, workbench_key

bp = Blueprint("usage", __name__)
#: The periods that the page offers, in days.
PERIODS = (7, 30, 90, 365)
#: Longer ones are shown by week.
LONGEST_BY_DAY = 30
#: Lines of CSV that are sent in one piece.
_LINES = 500


@bp.get("/usage")
def show() -> Response:
    """Tokens now, and what was used in a period."""
    account = require_person()
    days = _days()
    found = usage(parts().database, account.id, days)
    firsts, spans = _spans(found.days, days)
    models = sorted({span.model for span in spans})
    used = {(span.day, span.model): span.charged for span in spans}
    chart = stacked_bars(firsts, {model: [used.get((first, model), 0) for first in firsts] for model in models},
                         "tokens")
    names = {key.id: key.name for key in list_keys(parts().database, account)} | {
        workbench_key(account.id): WORKBENCH}
    return make_response(render_template(
        "usage.html", balance=found.balance, meter=_meter(found.balance), spans=spans[::-1], days=days,
        span="day" if days <= LONGEST_BY_DAY else "week", periods=PERIODS, chart=chart, models=models,
        by_key=usage_by_key(parts().database, account.id, days), names=names,
        grants=list_grants(parts().database, account.id)[::-1],
        asked=list_requests(parts().database, account.id, "open")))


@bp.get("/usage.csv")
def export() -> Response:
    """A line for each request, as a file."""
    account = require_person()
    note_export(parts().database, actor(), account.id)
    answer = Response(_csv(parts().database, account.id), content_type="text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = f'attachment; filename="strata-usage-{datetime.now(UTC):%Y-%m-%d}.csv"'
    return answer


@bp.get("/usage/request")
def ask_page() -> Response:
    """Request more tokens."""
    return _ask_page(require_person())


@bp.post("/usage/request")
def ask() -> Response:
    """Take a request, for an admin to decide."""
    account = require_person()
    try:
        ask_for_tokens(parts().database, actor(), account.id, forms.whole("amount", "The amount"), forms.text("reason"))
    except InvalidRequest as error:
        return _ask_page(account, str(error), 400)
    return make_response(redirect("/usage/request", 303))


def _ask_page(account: Account, problem: str | None = None, status: int = 200) -> Response:
    asked = list_requests(parts().database, account.id)[::-1]
    amounts = {grant.id: grant.amount for grant in list_grants(parts().database, account.id)}
    return make_response(render_template(
        "request_tokens.html", asked=asked, amounts=amounts, problem=problem, form=request.form), status)


def _spans(used: list[DayUsage], days: int) -> tuple[list[str], list[DayUsage]]:
    """The first days of the spans, days or weeks, of a period that ends today (UTC); and what was used in them by
    model, with a span's first day as its day."""
    length = 1 if days <= LONGEST_BY_DAY else 7
    today = datetime.now(UTC).date()
    firsts = [(today - timedelta(days=length * back - 1)).isoformat() for back in range(-(-days // length), 0, -1)]
    spans: dict[tuple[str, str], DayUsage] = {}
    for day in used:
        first = max((first for first in firsts if first <= day.day), default=firsts[0])
        so_far = spans.get((first, day.model), DayUsage(first, day.model, 0, 0, 0, 0))
        spans[first, day.model] = replace(
            so_far, requests=so_far.requests + day.requests, prompt_tokens=so_far.prompt_tokens + day.prompt_tokens,
            completion_tokens=so_far.completion_tokens + day.completion_tokens, charged=so_far.charged + day.charged)
    return firsts, list(spans.values())


def _meter(balance: Balance) -> Markup:
    parts_of = {"charged": balance.charged, "held": balance.held, "available": balance.available}
    words = ", ".join(f"{value:,} {name}" for name, value in parts_of.items())
    return meter(parts_of, balance.granted, f"Of {balance.granted:,} tokens: {words}")


def _days() -> int:
    value = request.args.get("days", "30")
    if value not in map(str, PERIODS):
        raise InvalidRequest(f"The page shows {', '.join(map(str, PERIODS))} days.", "days")
    return int(value)


def _csv(database: Database, account_id: str) -> Iterator[str]:
    out = io.StringIO()
    write_csv((), out)
    yield out.getvalue()
    records = export_usage(database, account_id)
    while some := list(islice(records, _LINES)):
        out = io.StringIO()
        write_csv(some, out)
        yield out.getvalue().partition("\n")[2]  # the head is there already
