"""The Flask application: makes the parts, registers the routes, and gives each answer its request id."""
from __future__ import annotations

import time

import structlog
from flask import Flask, Response, g, request
from werkzeug.exceptions import NotFound
from werkzeug.middleware.proxy_fix import ProxyFix

from frontend import logs
from frontend.accounts.keys import random_text
from frontend.api import batches, chat, completions, files, health, jobs, models, openapi, tokenize, usage
from frontend.api.answers import handle_errors
from frontend.api.counting import count_requests
from frontend.api.disconnect import bound_standstill
from frontend.api.parts import EXTENSION, Parts
from frontend.api.quota import show_quotas
from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.inference import Inference
from frontend.jobs.files import Files
from frontend.jobs.queue import Queue
from frontend.jobs.service import Jobs
from frontend.jobs.storage import Storage
from frontend.limits.attempts import Attempts
from frontend.limits.rate import Rate
from frontend.limits.slots import Slots
from frontend.limits.store import connect
from frontend.limits.threads import Threads
from frontend.settings import Settings
from frontend.warmth.places import Places
from frontend.warmth.records import Records
from frontend.web.site import add_app

_log = structlog.get_logger(__name__)


def create_app(settings: Settings | None = None) -> Flask:
    """The application, its database brought up to date. Make it in the process that serves it, after any fork."""
    settings = settings or Settings.from_environment()
    logs.configure(settings.log_level)
    database = Database(settings.database_url)
    migrate(database)

    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    # A path is what it says: no redirect, which would lose the body of a POST.
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False
    if settings.trusted_proxies:
        # Who asks is what the last proxies of ours say, and not what a client makes up.
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=settings.trusted_proxies)  # type: ignore[method-assign]
    redis, inference = connect(settings.redis_url), Inference(settings.triton_urls)
    storage = Storage(settings.job_storage)
    app.extensions[EXTENSION] = Parts(
        settings, database, redis, inference, Rate(settings.redis_url, redis), Slots(redis), Threads(settings.threads),
        Leases(database, settings.hold_lease_seconds), Places(redis, inference, settings.load_timeout_seconds),
        Records(redis), Attempts(settings.redis_url, redis),
        Jobs(database, storage, Queue(redis), settings.job_days), Files(database, storage, settings.job_days))
    handle_errors(app)
    _identify_requests(app)
    count_requests(app)
    _refuse_odd_paths(app)
    show_quotas(app)
    for module in (health, models, completions, jobs, files, batches, tokenize, usage, chat, openapi):
        app.register_blueprint(module.bp)
    add_app(app)
    return app


def _refuse_odd_paths(app: Flask) -> None:
    """No id has the one character that PostgreSQL does not even look for."""

    @app.before_request
    def _look() -> None:
        if "\0" in request.path:
            raise NotFound


def _identify_requests(app: Flask) -> None:
    """Give each request an id of ours, in its answer and in its log lines, and log how it ended."""

    @app.before_request
    def _begin() -> None:
        bound_standstill(request.environ)
        g.request_id = f"req_{random_text(24)}"
        g.started = time.perf_counter()
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=g.request_id)

    @app.after_request
    def _end(answer: Response) -> Response:
        answer.headers["x-request-id"] = g.request_id
        line = _log.bind(
            **structlog.contextvars.get_contextvars(),
            method=request.method,
            route=request.url_rule.rule if request.url_rule else None,
            status=answer.status_code,
        )
        started = g.started
        # A stream ends long after its head is written, and on a server's thread outside of the request's context.
        answer.call_on_close(lambda: line.info("request", milliseconds=round((time.perf_counter() - started) * 1e3, 1)))
        return answer
