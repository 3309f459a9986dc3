"""Requests for tokens: approve with a Grant of any amount, or reject with a note."""
from __future__ import annotations

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.accounts.service import list_accounts
from frontend.api.parts import parts
from frontend.budgets.token_requests import approve_request, list_requests, reject_request
from frontend.budgets.usage import all_balances
from frontend.errors import Conflict, InvalidRequest
from frontend.web import forms
from frontend.web.visitor import actor

bp = Blueprint("requests", __name__)
#: Decided requests that the page shows.
_DECIDED = 50


@bp.get("/requests")
def show() -> Response:
    """Those that are open, and the last that were decided."""
    return _page()


@bp.post("/requests/<request_id>")
def decide(request_id: str) -> Response:
    """Decide one, once."""
    database = parts().database
    try:
        if request.form.get("decision") == "approve":
            approve_request(database, actor(), request_id, forms.whole("amount", "A Grant"), forms.text("note", 1000),
                            forms.last_day("expires"))
        else:
            reject_request(database, actor(), request_id, forms.text("note"))
    except (InvalidRequest, Conflict) as error:
        return _page(str(error), error.status, request_id)
    return make_response(redirect("/admin/requests", 303))


def _page(problem: str | None = None, status: int = 200, about: str | None = None) -> Response:
    database = parts().database
    found = list_requests(database)[::-1]
    return make_response(render_template(
        "admin/requests.html", open=[asked for asked in found if asked.status == "open"][::-1],
        decided=[asked for asked in found if asked.status != "open"][:_DECIDED],
        emails={account.id: account.email for account in list_accounts(database)}, balances=all_balances(database),
        problem=problem, about=about, form=request.form), status)
