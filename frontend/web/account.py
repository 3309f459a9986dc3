"""A person's own account: the browsers that are signed in, and the password."""
from __future__ import annotations

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.sessions import change_password, end_session, list_sessions
from frontend.api.parts import parts
from frontend.errors import NotFound, RateLimited
from frontend.web.visitor import actor, origin, require_person, visitor

bp = Blueprint("account", __name__)


@bp.get("/account")
def show() -> Response:
    """Sessions and password."""
    return _page()


@bp.post("/account/sessions/<session_id>/end")
def end(session_id: str) -> Response:
    """Sign another browser out, or this one."""
    account = require_person()
    try:
        end_session(parts().database, actor(), account.id, session_id)
    except Unknown as error:
        raise NotFound(str(error)) from None
    return make_response(redirect("/account", 303))


@bp.post("/account/password")
def password() -> Response:
    """Choose another password; other browsers are signed out."""
    account = require_person()
    person = visitor()
    assert person is not None
    whose = f"password {account.id}"  # not what is counted at signing in, which others can use up
    if not parts().attempts.allowed(origin(), whose):
        raise RateLimited("Too many attempts. Wait ten minutes, then try again.", headers={"Retry-After": "600"})
    try:
        change_password(parts().database, person, request.form.get("old", ""), request.form.get("new", ""), origin())
    except AccountError as error:
        return _page(problem=str(error), status=400)
    parts().attempts.forget(origin(), whose)
    return _page(done="Your password is changed, and other browsers are signed out.")


def _page(problem: str | None = None, done: str | None = None, status: int = 200) -> Response:
    account = require_person()
    person = visitor()
    assert person is not None
    return make_response(render_template(
        "account.html", account=account, sessions=list_sessions(parts().database, account.id),
        current=person.session.id, problem=problem, done=done), status)
