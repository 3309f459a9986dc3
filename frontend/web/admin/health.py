"""System health: which parts answer, and what they have to do."""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flask import Blueprint, Response, make_response, render_template
from redis.exceptions import RedisError

from frontend.api.parts import parts
from frontend.db.figures import figures
from frontend.errors import ApiError, Unavailable

bp = Blueprint("health", __name__)
#: Seconds after which a keeper that says nothing counts as away.
KEEPER_LATE = 10.0


@dataclass(frozen=True)
class Check:
    """A part: whether it answered, and how long that took."""

    name: str
    well: bool
    milliseconds: float
    about: str


@bp.get("/health")
def show() -> Response:
    """Every part, asked now."""
    ours = parts()
    checks = [
        _check("Database", ours.database.ping, ours.database.engine.dialect.name),
        _check("Redis", ours.redis.ping, "limits, turns, Jobs"),
        _check("Keeper", _keeper, "loads models, settles what is left, counts uptime"),
        *_tritons(),
    ]
    known = None
    if checks[0].well:
        with ours.database.read() as connection:
            known = figures(connection)
    return make_response(render_template("admin/health.html", checks=checks, figures=known, settings=ours.settings))


def _check(name: str, check: Callable[[], object], about: str) -> Check:
    began = time.perf_counter()
    try:
        check()
        well = True
    except (ApiError, RedisError):
        well = False
    return Check(name, well, (time.perf_counter() - began) * 1000, about)


def _tritons() -> list[Check]:
    began = time.perf_counter()
    answering = parts().inference.repository.answering()
    took = (time.perf_counter() - began) * 1000
    return [Check(f"Triton {address}", well, took, "Inference") for address, well in sorted(answering.items())]


def _keeper() -> None:
    seen = parts().records.keeper_seen()
    if seen is None or seen > KEEPER_LATE:
        raise Unavailable("No keeper works.")
