"""The Spend limit, and what the engines' month has cost so far."""
from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.api.parts import parts
from frontend.errors import InvalidRequest
from frontend.spend.limits import EVERYTHING, WARN_PERCENT, month_of, set_spend_limit, show_spend, spend_by_day
from frontend.web import forms
from frontend.web.charts import stacked_bars
from frontend.web.visitor import actor
from model_repository import catalog

bp = Blueprint("spend", __name__)


@bp.get("/spend")
def show() -> Response:
    """A month."""
    return _page()


@bp.post("/spend")
def limit() -> Response:
    """Set a limit, or take it away."""
    scope = request.form.get("scope", "")
    try:
        if scope != EVERYTHING and scope not in catalog.load():
            raise InvalidRequest("There is no such model.", "scope")
        dollars = forms.number("dollars", "A limit") if request.form.get("dollars", "").strip() else None
        set_spend_limit(parts().database, actor(), scope, dollars)
    except InvalidRequest as error:
        return _page(str(error), 400)
    return make_response(redirect("/admin/spend", 303))


def _page(problem: str | None = None, status: int = 200) -> Response:
    database = parts().database
    now = month_of(datetime.now(UTC))
    month = request.args.get("month", now)
    if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month):
        raise InvalidRequest("A month is written as 2027-01.", "month")
    spends = show_spend(database, month)
    by_day = spend_by_day(database, month)
    year, number = map(int, month.split("-"))
    days = [f"{month}-{day:02}" for day in range(1, calendar.monthrange(year, number)[1] + 1)]
    past = [day for day in days if day <= datetime.now(UTC).strftime("%Y-%m-%d")]
    models = sorted({model for costs in by_day.values() for model in costs})
    whole = spends[-1]
    chart = stacked_bars(days, {model: [by_day.get(day, {}).get(model, 0.0) for day in past] for model in models},
                         "dollars", whole.limit, cumulative=True)
    before = f"{year - 1}-12" if number == 1 else f"{year}-{number - 1:02}"
    after = f"{year + 1}-01" if number == 12 else f"{year}-{number + 1:02}"
    return make_response(render_template(
        "admin/spend.html", month=month, before=before, after=after if after <= now else None, whole=whole,
        scopes=spends[:-1], chart=chart, models=models, catalog=list(catalog.load()), everything=EVERYTHING,
        warn=WARN_PERCENT, problem=problem), status)
