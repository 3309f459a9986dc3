"""Who looks at a page: the session that the browser's cookie names, and the token that its forms must carry.

A form's token is derived from a secret that only this browser has: the session's, or for somebody who is not signed in
that of a cookie of its own. So nothing needs to be stored, and another site can't know it.
"""
from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote, urlsplit

import structlog
from flask import Response, g, make_response, redirect, request

from frontend.accounts.audit import Actor
from frontend.accounts.keys import random_text
from frontend.accounts.sessions import LIFE, SignedIn, who
from frontend.api.parts import parts
from frontend.db.records import Account
from frontend.errors import ApiError, NotFound

#: The names of the cookies. Over https the prefix makes browsers refuse them from any other host and over http.
_SESSION, _FORM, _PREFIX = "strata_session", "strata_form", "__Host-"


class WrongForm(ApiError):
    """403: a form without its token, or of another site."""

    status, type, code = 403, "permission_error", "wrong_form"


class SignInFirst(Exception):
    """Nobody is signed in, so the way leads to where people sign in."""

    def answer(self) -> Response:
        """The way there, and back again afterwards. For a part of a page, it is the whole page that goes there."""
        part = request.headers.get("HX-Request") is not None
        back = "/"
        if part:
            back = urlsplit(request.headers.get("HX-Current-URL", "/")).path
        elif request.method == "GET":
            back = request.full_path.rstrip("?")
        there = f"/sign-in?next={quote(back, safe='/')}"
        return Response(status=401, headers={"HX-Redirect": there}) if part else make_response(redirect(there, 303))


def visitor() -> SignedIn | None:
    """The person who is signed in, if anybody is."""
    if "visitor" not in g:
        secret = request.cookies.get(_name(_SESSION), "")
        g.visitor = who(parts().database, secret) if secret else None
        if g.visitor:
            structlog.contextvars.bind_contextvars(account_id=g.visitor.account.id)
    found: SignedIn | None = g.visitor
    return found


def require_person() -> Account:
    """The account that is signed in. Raises SignInFirst."""
    found = visitor()
    if found is None:
        raise SignInFirst
    return found.account


def require_admin() -> Account:
    """The admin who is signed in. For a member the page is not there."""
    account = require_person()
    if account.role != "admin":
        raise NotFound("There is no such page.")
    return account


def actor() -> Actor:
    """Who acts, for the audit log."""
    return Actor(require_person().id, origin())


def origin() -> str:
    """The address that the request comes from."""
    return request.remote_addr or "unknown"


def form_token() -> str:
    """The token for the forms of this page."""
    secret = request.cookies.get(_name(_SESSION), "") if visitor() else request.cookies.get(_name(_FORM), "")
    if not secret:
        secret = g.setdefault("form_secret", random_text(43))
    return hmac.new(secret.encode(), b"strata form", hashlib.sha256).hexdigest()


def check_form() -> None:
    """Raises WrongForm unless the request is from a form of ours in this browser."""
    elsewhere = request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none")
    token = request.headers.get("X-Form-Token") or request.form.get("form_token", "")
    if elsewhere or not hmac.compare_digest(token.encode(), form_token().encode()):
        raise WrongForm("This form is from another place, or too old. Go back, reload the page and send it again.")


def remember(answer: Response, secret: str) -> Response:
    """Sign the browser in."""
    _set(answer, _SESSION, secret, int(LIFE.total_seconds()))
    answer.delete_cookie(_name(_FORM), secure=_secure(), httponly=True, samesite="Lax")
    return answer


def forget(answer: Response) -> Response:
    """Sign the browser out."""
    answer.delete_cookie(_name(_SESSION), secure=_secure(), httponly=True, samesite="Lax")
    return answer


def keep_form_secret(answer: Response) -> Response:
    """Give the browser the secret from which this page's form token was made, if it had none."""
    if secret := g.pop("form_secret", None):
        _set(answer, _FORM, secret, None)
    return answer


def _set(answer: Response, name: str, value: str, max_age: int | None) -> None:
    answer.set_cookie(_name(name), value, max_age=max_age, secure=_secure(), httponly=True, samesite="Lax")


def _name(name: str) -> str:
    return _PREFIX + name if _secure() else name


def _secure() -> bool:
    return parts().settings.public_url.startswith("https://")
