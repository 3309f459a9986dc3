"""The Models page: what is served, whether it is Warm, and the facts that researchers need."""
from __future__ import annotations

from dataclasses import dataclass

from flask import Blueprint, Response, make_response, render_template
from redis.exceptions import RedisError

from frontend.api.parts import parts
from frontend.inference import ModelCard
from frontend.web.visitor import require_person

bp = Blueprint("models", __name__)


@dataclass(frozen=True)
class ModelView:
    """A model as the page shows it; `seconds` until it is Warm, None where nobody knows."""

    card: ModelCard
    state: str
    seconds: float | None
    waiting: int


@bp.get("/models")
def show() -> Response:
    """The whole page."""
    require_person()
    return make_response(render_template("models.html", models=views()))


@bp.get("/models/states")
def states() -> Response:
    """The part of the page that changes by itself."""
    require_person()
    return make_response(render_template("models_list.html", models=views()))


def views() -> list[ModelView]:
    """Every model that is served."""
    inference, records = parts().inference, parts().records
    cards = inference.models()
    found = inference.states([card.id for card in cards])
    views = []
    for card in cards:
        try:
            seconds, waiting = records.estimate(card.id, found[card.id]), records.waiting([card.id])[card.id]
        except RedisError:
            seconds, waiting = None, 0
        views.append(ModelView(card, found[card.id], seconds, waiting))
    return views
