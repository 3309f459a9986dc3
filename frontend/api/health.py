"""GET /healthz: this process lives. GET /readyz: the parts that it needs answer too. Neither needs a key."""
from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response
from redis.exceptions import RedisError

from frontend.api.answers import json_answer
from frontend.api.parts import parts
from frontend.errors import ApiError, Problem, Unavailable

bp = Blueprint("health", __name__)


@bp.get("/healthz")
def healthz() -> Response:
    """Alive; asks no other part."""
    return json_answer({"status": "ok"})


@bp.get("/readyz")
def readyz() -> Response:
    """Ready, or 503 with every part that does not answer, each asked for at most a few seconds."""
    ours = parts()
    checks: dict[str, Callable[[], object]] = {
        "database": ours.database.ping, "redis": ours.redis.ping, "triton": _triton,
    }
    problems = []
    for name, check in checks.items():
        try:
            check()
        except (ApiError, RedisError):
            problems.append(Problem(f"{name} does not answer", name))
    if problems:
        named = ", ".join(str(problem.param) for problem in problems)
        raise Unavailable(f"Not ready: {named}.", problems[0].param, tuple(problems))
    return json_answer({"status": "ready", "parts": dict.fromkeys(checks, "ok")})


def _triton() -> None:
    if not parts().inference.ready():
        raise Unavailable("Triton does not answer.")
