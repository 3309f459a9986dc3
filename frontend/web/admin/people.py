"""People: invite, disable, change roles, reset passwords, give tokens."""
from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.accounts import service
from frontend.accounts.api_keys import list_keys
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.invitations import RESET_VALID, VALID, invite, reset_password
from frontend.accounts.sessions import list_sessions
from frontend.api.parts import parts
from frontend.budgets.grants import give_grant, list_grants
from frontend.budgets.holds import balance
from frontend.budgets.usage import all_balances
from frontend.db.records import Account
from frontend.errors import InvalidRequest, NotFound
from frontend.web import forms
from frontend.web.keys import state
from frontend.web.visitor import actor

bp = Blueprint("people", __name__)


@bp.get("/people")
def show() -> Response:
    """Everybody."""
    return _page()


@bp.post("/people")
def invite_person() -> Response:
    """Invite somebody, and show the link."""
    try:
        email, role = forms.text("email", 254), request.form.get("role") or None
        account, _, token = invite(parts().database, actor(), email, role)
    except (AccountError, InvalidRequest) as error:
        return _page(problem=str(error), status=400)
    return _page(link=_link(token), link_for=account, days=VALID.days)


@bp.post("/people/<account_id>/reset")
def reset(account_id: str) -> Response:
    """Make a link with which a person chooses a password: the first, or another."""
    account = _person(account_id)
    try:
        if account.has_password:
            _, token = reset_password(parts().database, actor(), account)
            days = RESET_VALID.days
        else:
            _, _, token = invite(parts().database, actor(), account.email)
            days = VALID.days
    except AccountError as error:
        return _page(problem=str(error), status=400)
    return _page(link=_link(token), link_for=account, days=days)


@bp.post("/people/<account_id>/state")
def change_state(account_id: str) -> Response:
    """Disable or enable an account."""
    return _change(lambda account: service.set_disabled(
        parts().database, actor(), account, request.form.get("to") == "disabled"), account_id)


@bp.post("/people/<account_id>/role")
def change_role(account_id: str) -> Response:
    """Make a person an admin, or a member."""
    return _change(lambda account: service.set_role(
        parts().database, actor(), account, request.form.get("role", "")), account_id)


@bp.get("/people/<account_id>")
def person(account_id: str) -> Response:
    """What can be done with one person."""
    return _person_page(_person(account_id))


@bp.post("/people/<account_id>/grant")
def grant(account_id: str) -> Response:
    """Give tokens."""
    account = _person(account_id)
    try:
        give_grant(parts().database, actor(), account.id, forms.whole("amount", "A Grant"), forms.text("note", 1000),
                   forms.last_day("expires"))
    except InvalidRequest as error:
        return _person_page(account, problem=str(error), status=400)
    return make_response(redirect(f"/admin/people/{account.id}", 303))


def _change(act: Callable[[Account], Account], account_id: str) -> Response:
    account = _person(account_id)
    try:
        act(account)
    except AccountError as error:
        return _person_page(account, problem=str(error), status=400)
    return make_response(redirect(f"/admin/people/{account.id}", 303))


def _person(account_id: str) -> Account:
    try:
        return service.account_by_id(parts().database, account_id)
    except Unknown as error:
        raise NotFound(str(error)) from None


def _link(token: str) -> str:
    return f"{parts().settings.public_url}/join?token={token}"


def _person_page(account: Account, problem: str | None = None, status: int = 200) -> Response:
    database = parts().database
    return make_response(render_template(
        "admin/person.html", account=account, balance=balance(database, account.id),
        grants=list_grants(database, account.id)[::-1], keys=list_keys(database, account)[::-1], state=state,
        sessions=list_sessions(database, account.id), problem=problem, form=request.form), status)


def _page(
    problem: str | None = None, link: str | None = None, link_for: Account | None = None, days: int = 0,
    status: int = 200,
) -> Response:
    database = parts().database
    return make_response(render_template(
        "admin/people.html", people=service.list_accounts(database), balances=all_balances(database),
        problem=problem, link=link, link_for=link_for, days=days, form=request.form), status)
