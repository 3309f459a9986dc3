"""The Workbench: runs the API's own requests for the person who is signed in, and keeps only what is saved."""
from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import structlog
from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.accounts.audit import Action, record
from frontend.accounts.caller import Caller
from frontend.accounts.keys import random_text
from frontend.api.answers import answer_error, json_answer
from frontend.api.body import json_body
from frontend.api.completions import Form, respond
from frontend.api.parts import parts
from frontend.api.quota import admit
from frontend.budgets.holds import balance
from frontend.budgets.usage import own_limits
from frontend.completions.walk import Run
from frontend.db import saved_requests as rows
from frontend.db.records import SavedRequest
from frontend.errors import InvalidRequest, NotFound
from frontend.schemas.completions import CompletionSchema, load_completion
from frontend.schemas.json_body import parse_object
from frontend.web import forms, lens
from frontend.web.fields import groups
from frontend.web.models import views
from frontend.web.visitor import SignInFirst, actor, require_person

bp = Blueprint("workbench", __name__)
#: What usage calls the requests of this page.
WORKBENCH = "Workbench"
#: Requests that a person may keep, and characters of each.
MOST_SAVED, MOST_SAVED_SIZE = 200, 200_000


def workbench_key(account_id: str) -> str:
    """What stands in usage records in place of an API key's id."""
    return f"app_{account_id.removeprefix('acct_')}"


@bp.get("/workbench")
def show() -> Response:
    """The page, filled with a saved request where the address names one."""
    account = require_person()
    database = parts().database
    with database.read() as connection:
        kept = rows.names_of(connection, account.id)
        chosen = rows.saved(connection, account.id, request.args.get("saved", ""))
    if chosen is None and "saved" in request.args:
        raise NotFound("There is no such saved request.")
    models = views()
    settings = {
        "models": {view.card.id: {
            "layers": view.card.n_layers, "hidden": view.card.hidden_size, "vocabulary": view.card.vocab_size,
            "context": view.card.max_model_len, "capture": view.card.activation_layers} for view in models},
        "base": parts().settings.public_url, "request": _fields(chosen) if chosen else None,
        "lens_rows": lens.MOST_ROWS,
    }
    return make_response(render_template(
        "workbench.html", models=models, groups=groups(CompletionSchema()), saved=kept, chosen=chosen,
        settings=settings, available=balance(database, account.id).available))


@bp.post("/workbench/completions")
def complete() -> Response:
    """POST /v1/completions for the person who is signed in: the same body, checks, limits, charge and answer."""
    try:
        asked = load_completion(json_body(), parts().settings.max_total_tokens)
        return respond(asked, _caller)
    except SignInFirst:
        raise  # the page's script says so
    except Exception as error:  # a program asks: it gets the API's own shape
        return answer_error(error)


@bp.post("/workbench/lens")
def look() -> Response:
    """How long the residual stream is at each Layer and position of a prompt, and what the output head reads there."""
    try:
        asked = lens.load(parse_object(json_body()), parts().settings.max_total_tokens)
        return respond(asked.request, _caller, Form(asked.check_plan, _lens_answer))
    except SignInFirst:
        raise
    except Exception as error:
        return answer_error(error)


@bp.post("/workbench/saved")
def save() -> Response:
    """Keep a request."""
    account = require_person()
    name = forms.text("name", 100) or "Untitled"
    body = request.form.get("body", "")
    if len(body) > MOST_SAVED_SIZE:
        raise InvalidRequest(f"A saved request has at most {MOST_SAVED_SIZE} characters.", "body")
    load_completion(body.encode(errors="surrogatepass"), parts().settings.max_total_tokens)
    saved = SavedRequest(f"saved_{random_text(20)}", account.id, name, body, datetime.now(UTC))
    with parts().database.write() as connection:
        if rows.count(connection, account.id) >= MOST_SAVED:
            raise InvalidRequest(f"You keep {MOST_SAVED} requests already: forget some first.", "name")
        rows.save(connection, saved)
        record(connection, actor(), Action.SAVED_REQUEST_ADD, saved.id, account.id)
    return make_response(redirect(f"/workbench?saved={saved.id}", 303))


@bp.post("/workbench/saved/<saved_id>/forget")
def forget(saved_id: str) -> Response:
    """Forget one."""
    account = require_person()
    with parts().database.write() as connection:
        if not rows.forget(connection, account.id, saved_id):
            raise NotFound("There is no such saved request.")
        record(connection, actor(), Action.SAVED_REQUEST_FORGET, saved_id, account.id)
    return make_response(redirect("/workbench", 303))


def _fields(saved: SavedRequest) -> dict[str, Any]:
    """What to fill in; a number that JavaScript would round is a text."""
    return {name: str(value) if isinstance(value, int) and abs(value) >= 2**53 else value
            for name, value in json.loads(saved.body).items()}


def _caller() -> Caller:
    """The person as the API's routes see a caller. The request is counted like one with a key."""
    account = require_person()
    database = parts().database
    caller = Caller(account.id, workbench_key(account.id), frozenset({"completions"}),
                    balance(database, account.id).available, own_limits(database, account.id))
    structlog.contextvars.bind_contextvars(key_id=caller.key_id)
    admit(caller)
    return caller


def _lens_answer(run: Run) -> Response:
    return json_answer(lens.look(run, parts().inference))
