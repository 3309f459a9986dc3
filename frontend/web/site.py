"""Puts the App together: its pages under one blueprint, what all of them share, and its errors as pages."""
from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from flask import Blueprint, Flask, Response, g, make_response, render_template, request, send_from_directory
from werkzeug.exceptions import MethodNotAllowed, NotFound

from frontend.api.answers import RETRY_AFTER, answer_error, api_error, note_error
from frontend.api.parts import parts
from frontend.errors import ApiError
from frontend.web import account, docs, jobs, keys, models, sign_in, usage, workbench
from frontend.web.admin import pages as admin_pages
from frontend.web.visitor import SignInFirst, check_form, form_token, keep_form_secret, visitor

#: Bytes that a form of ours may have; the Workbench's prompts are the largest.
MOST_FORM_BYTES = 2 * 2**20
STATIC = Path(__file__).parent / "static"
#: Nothing from elsewhere, nothing inline, in no frame.
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
          "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin", "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_YEAR = 31_536_000
_TITLES = {400: "That can't be", 403: "Not allowed", 404: "Not found", 405: "Not possible", 409: "Too late",
           413: "Too large", 429: "Too many", 502: "Inference failed", 503: "Not available now", 504: "Too slow"}
#: Where machines ask, who read JSON.
_API = ("/v1/", "/healthz", "/readyz", "/openapi.json")

web = Blueprint("web", __name__, template_folder="templates")
for _page in (sign_in, account, keys, usage, jobs, models, workbench, docs, admin_pages):
    web.register_blueprint(_page.bp)


def add_app(app: Flask) -> None:
    """Serve the App beside the API."""
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters |= {"count": _count, "day": _day, "minute": _minute, "ago": _ago}
    app.jinja_env.globals |= {"static": static_url, "form_token": form_token, "visitor": visitor}
    app.register_blueprint(web)
    app.register_error_handler(NotFound, _no_route)
    app.register_error_handler(MethodNotAllowed, _no_route)


@web.before_request
def _protect() -> None:
    request.max_content_length = MOST_FORM_BYTES
    request.max_form_memory_size = MOST_FORM_BYTES
    if request.method not in ("GET", "HEAD", "OPTIONS"):
        check_form()


@web.after_request
def _finish(answer: Response) -> Response:
    answer.headers.update(HEADERS)
    if parts().settings.public_url.startswith("https://"):
        answer.headers["Strict-Transport-Security"] = f"max-age={_YEAR}"
    answer.headers.setdefault("Cache-Control", "no-store")
    return keep_form_secret(answer)


@web.errorhandler(Exception)
def _failed(raised: Exception) -> Response:
    """An error as a page."""
    if isinstance(raised, SignInFirst):
        return raised.answer()
    error = api_error(raised, MOST_FORM_BYTES)
    note_error(error, raised)
    return error_page(error)


def error_page(error: ApiError) -> Response:
    """The page for an error."""
    try:
        visitor()
    except ApiError:
        g.visitor = None  # what is away may be what says who looks: the error is shown all the same
    page = render_template("error.html", title=_TITLES.get(error.status, "Something went wrong"), error=error,
                           request_id=g.request_id)
    answer = make_response(page, error.status)
    if error.status == 503:
        answer.headers["Retry-After"] = str(RETRY_AFTER)
    answer.headers.update(error.headers)
    return answer


def _no_route(raised: NotFound | MethodNotAllowed) -> Response:
    """A path that there is none of: a page for a browser, JSON for a program."""
    accepted = request.accept_mimetypes
    prefers_pages = accepted.quality("text/html") > accepted.quality("application/json")
    if request.path.startswith(_API) or not prefers_pages:
        return answer_error(raised)
    error = api_error(raised, 0)
    note_error(error, raised)
    error.message = "There is no such page." if error.status == 404 else error.message
    return _finish(error_page(error))


@web.get("/static/<name>")
def static_file(name: str) -> Response:
    """A file that pages need. Its address changes with it, so browsers may keep it."""
    answer = send_from_directory(STATIC, name)
    answer.headers["Cache-Control"] = f"public, max-age={_YEAR}, immutable"
    return answer


@cache
def static_url(name: str) -> str:
    """The address of a file in `static/`."""
    version = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={version}"


def _count(value: int | float) -> str:
    return f"{value:,}"


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d")


def _minute(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _ago(moment: datetime) -> str:
    """How long ago, in the largest unit."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"
