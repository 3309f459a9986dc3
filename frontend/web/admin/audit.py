"""The audit log: who did what to whom, when and from where."""
from __future__ import annotations

from flask import Blueprint, Response, make_response, render_template, request

from frontend.accounts.audit import Action, list_events
from frontend.accounts.service import list_accounts
from frontend.api.parts import parts
from frontend.errors import InvalidRequest

bp = Blueprint("audit", __name__)
_EVENTS = 100


@bp.get("/audit")
def show() -> Response:
    """The newest events, all or those of one person or kind."""
    database = parts().database
    accounts = list_accounts(database)
    emails = {account.id: account.email for account in accounts}
    email, action = request.args.get("account", "").strip().lower(), request.args.get("action", "")
    if action and action not in set(Action):
        raise InvalidRequest("There is no such action.", "action")
    account_id = next((account.id for account in accounts if account.email == email), None)
    events = [] if email and account_id is None else list_events(
        database, account_id=account_id, action=action or None, limit=_EVENTS)
    return make_response(render_template(
        "admin/audit.html", events=events[::-1], emails=emails, actions=list(Action), email=email, action=action,
        most=_EVENTS))
