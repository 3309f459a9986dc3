"""How people come in and leave: the front page, signing in, an invitation's or a reset's password, signing out."""
from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.invitations import accept, invited
from frontend.accounts.sessions import end_session, sign_in
from frontend.api.parts import parts
from frontend.db.records import Account
from frontend.errors import RateLimited
from frontend.web.forms import place
from frontend.web.visitor import actor, forget, origin, remember, visitor

bp = Blueprint("sign_in", __name__)


@bp.get("/")
def front() -> Response:
    """What this is, or for those who are in, the page that they most want."""
    if visitor():
        return make_response(redirect("/usage", 303))
    return make_response(render_template("front.html"))


@bp.get("/sign-in")
def sign_in_page() -> Response:
    """The form."""
    after = place(request.args.get("next"))
    if visitor():
        return make_response(redirect(after, 303))
    return make_response(render_template("sign_in.html", next=after))


@bp.post("/sign-in")
def begin() -> Response:
    """Check the password, and begin a session with a secret that nobody had before."""
    email, password = request.form.get("email", ""), request.form.get("password", "")
    after = place(request.form.get("next"))
    attempts, whose = parts().attempts, email.strip().lower()[:254]
    if not attempts.allowed(origin(), whose):
        raise RateLimited("Too many attempts. Wait ten minutes, then try again.", headers={"Retry-After": "600"})
    signed_in = sign_in(parts().database, email, password, origin(), request.headers.get("User-Agent", ""))
    if signed_in is None:
        return make_response(render_template(
            "sign_in.html", next=after, email=email[:254], problem="No account has this email and this password."), 401)
    _, secret = signed_in
    attempts.forget(origin(), whose)
    return remember(make_response(redirect(after, 303)), secret)


@bp.post("/sign-out")
def sign_out() -> Response:
    """End the session, in the database and in the browser."""
    found = visitor()
    if found:
        with suppress(Unknown):  # it was ended from elsewhere just now
            end_session(parts().database, actor(), found.account.id, found.session.id)
    return forget(make_response(redirect("/", 303)))


@bp.get("/join")
def join_page() -> Response:
    """Choose a password, with the token of an invitation or of a reset."""
    token = request.args.get("token", "").strip()
    account = invited(parts().database, token) if token else None
    problem = None if account or not token else "This token is not valid any more. Ask an admin for a new one."
    return _join_page(token, account, problem)


@bp.post("/join")
def join() -> Response:
    """Take the password, and sign in."""
    token, password = request.form.get("token", "").strip(), request.form.get("password", "")
    # A token can't be guessed, so nobody's but its own attempts are counted against it: others can't shut it.
    whose = f"invitation {sha256(token.encode(errors='replace')).hexdigest()}"
    if not parts().attempts.allowed(origin(), whose):
        raise RateLimited("Too many attempts. Wait ten minutes, then try again.", headers={"Retry-After": "600"})
    try:
        account = accept(parts().database, token, password, origin())
    except AccountError as error:
        return _join_page(token, invited(parts().database, token), str(error), 400)
    parts().attempts.forget(origin(), whose)
    signed_in = sign_in(parts().database, account.email, password, origin(), request.headers.get("User-Agent", ""))
    answer = make_response(redirect("/docs/quickstart" if signed_in else "/sign-in", 303))
    return remember(answer, signed_in[1]) if signed_in else answer


def _join_page(token: str, account: Account | None, problem: str | None, status: int = 200) -> Response:
    return make_response(render_template("join.html", token=token, account=account, problem=problem),
                         400 if problem and status == 200 else status)
