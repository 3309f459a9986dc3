"""The API Keys page: create, rotate and revoke. A key's secret is on one page, once."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.accounts import api_keys as service
from frontend.accounts.errors import AccountError, Unknown
from frontend.api.parts import parts
from frontend.db.records import Account, ApiKey
from frontend.errors import ApiError, InvalidRequest, NotFound
from frontend.web import forms
from frontend.web.visitor import actor, require_person

bp = Blueprint("keys", __name__)
#: What each scope lets a key do, for the form.
SCOPES = {"completions": "run completions", "jobs": "run Jobs", "usage:read": "read usage"}
#: How long a rotated key works on: what the form offers, in hours.
OVERLAPS = {0: "Not at all", 1: "One hour", 24: "One day", 168: "One week"}


@bp.get("/keys")
def show() -> Response:
    """Every key of the person's."""
    return _page(require_person())


@bp.post("/keys")
def create() -> Response:
    """Make a key and show its secret."""
    account = require_person()
    try:
        scopes = frozenset(request.form.getlist("scope"))
        if not scopes:
            raise InvalidRequest("A key without a scope is good for nothing: choose at least one.", "scope")
        key, secret = service.create_key(parts().database, actor(), account, forms.text("name", 100), scopes,
                                         forms.last_day("expires"))
    except (AccountError, InvalidRequest) as error:
        return _page(account, problem=str(error), status=400)
    return _page(account, new=key, secret=secret)


@bp.get("/keys/<key_id>/revoke")
def ask_revoke(key_id: str) -> Response:
    """Make sure."""
    return make_response(render_template("key_revoke.html", key=_own(key_id)))


@bp.post("/keys/<key_id>/revoke")
def revoke(key_id: str) -> Response:
    """Revoke a key: the next request with it is refused."""
    account = require_person()
    try:
        service.revoke_key(parts().database, actor(), key_id, account)
    except Unknown:
        raise _no_key() from None
    return make_response(redirect("/keys", 303))


@bp.get("/keys/<key_id>/rotate")
def ask_rotate(key_id: str) -> Response:
    """Ask how long the old key is to work on."""
    return make_response(render_template("key_rotate.html", key=_own(key_id), overlaps=OVERLAPS))


@bp.post("/keys/<key_id>/rotate")
def rotate(key_id: str) -> Response:
    """Make the key that takes its place, and show its secret."""
    account = require_person()
    try:
        hours = forms.whole("overlap", "The overlap")
        if hours not in OVERLAPS:
            raise InvalidRequest(f"The old key works on for {', '.join(map(str, OVERLAPS))} hours.", "overlap")
        old, new, secret = service.rotate_key(parts().database, actor(), key_id, timedelta(hours=hours), account)
    except Unknown:
        raise _no_key() from None
    except (AccountError, InvalidRequest) as error:
        return _page(account, problem=str(error), status=400)
    return _page(account, new=new, secret=secret, old=old)


def state(key: ApiKey) -> str:
    """What a key is good for now: `active`, `rotated` while it works beside its successor, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired"
    return "rotated" if key.replaced_by else "active"


def _own(key_id: str) -> ApiKey:
    account = require_person()
    for key in service.list_keys(parts().database, account):
        if key.id == key_id and state(key) in ("active", "rotated"):
            return key
    raise _no_key()


def _no_key() -> ApiError:
    return NotFound("There is no such key.")


def _page(
    account: Account, problem: str | None = None, new: ApiKey | None = None, secret: str | None = None,
    old: ApiKey | None = None, status: int = 200,
) -> Response:
    found = service.list_keys(parts().database, account)[::-1]
    return make_response(render_template(
        "keys.html", keys=[key for key in found if state(key) in ("active", "rotated")],
        ended=[key for key in found if state(key) in ("expired", "revoked")], state=state, scopes=SCOPES,
        problem=problem, new=new, secret=secret, old=old, form=request.form), status)
