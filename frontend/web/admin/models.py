"""Models and policies: where each is Warm, who uses it, when it is to be Warm, and which Tritons are drained."""
from __future__ import annotations

from dataclasses import dataclass

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.api.parts import parts
from frontend.db.policies import PolicyChange
from frontend.errors import InvalidRequest, NotFound
from frontend.inference import ModelCard
from frontend.limits.store import patiently
from frontend.warmth import policies, wishes
from frontend.warmth.policies import Policy, policy_of
from frontend.web import forms
from frontend.web.visitor import actor

bp = Blueprint("models", __name__)


@dataclass(frozen=True)
class Place:
    """A model at one Triton."""

    triton: str
    state: str
    drained: bool
    active: int
    failure: str | None


@dataclass(frozen=True)
class ModelView:
    """A served model, its policy, and where it is."""

    card: ModelCard
    policy: Policy
    places: list[Place]
    waiting: int
    asked: str | None


@bp.get("/models")
def show() -> Response:
    """All of them."""
    return _page()


@bp.post("/models/<model>/policy")
def set_policy(model: str) -> Response:
    """Change a policy, or make it the catalog's again."""
    card = _card(model)
    try:
        change = None
        if request.form.get("reset") is None:
            windows = tuple(line.strip() for line in forms.text("windows").splitlines() if line.strip())
            change = PolicyChange(request.form.get("warm", ""), forms.number("idle_minutes", "The time"), windows)
        policies.set_policy(parts().database, actor(), card.id, change)
    except InvalidRequest as error:
        return _page(str(error), 400, card.id)
    return make_response(redirect("/admin/models", 303))


@bp.post("/models/<model>/wish")
def wish(model: str) -> Response:
    """Ask the keeper to load or to unload."""
    card, wanted = _card(model), request.form.get("wish")
    if wanted not in ("load", "unload"):
        raise InvalidRequest("A model can be loaded or unloaded.", "wish")
    policy = policy_of(card.warm, card.idle_minutes, card.warm_windows, policies.changes(parts().database).get(card.id))
    try:
        wishes.wish(parts().database, parts().records, actor(), card.id, wanted, policy)
    except InvalidRequest as error:
        return _page(str(error), 400, card.id)
    return make_response(redirect("/admin/models", 303))


@bp.post("/tritons/drain")
def drain() -> Response:
    """Drain a Triton, or send it requests again."""
    triton = request.form.get("triton", "")
    if triton not in _tritons():
        raise NotFound("There is no such Triton.")
    wishes.drain(parts().database, parts().records, actor(), triton, request.form.get("to") == "drained")
    return make_response(redirect("/admin/models", 303))


def _tritons() -> list[str]:
    return sorted(endpoint.address for endpoint in parts().inference.endpoints.all())


def _card(model: str) -> ModelCard:
    return parts().inference.model(model)


def _page(problem: str | None = None, status: int = 200, about: str | None = None) -> Response:
    inference, records = parts().inference, parts().records
    cards = inference.models()
    states = inference.repository.states([card.id for card in cards])
    changed = policies.changes(parts().database)
    drained, breakers, asked, waiting = patiently(lambda: (
        records.drained(), records.breakers(), records.asked(), records.waiting([card.id for card in cards])))
    found = []
    for card in cards:
        places = []
        for triton, state in states[card.id].items():
            failure = breakers.get(f"{card.id}@{triton}")
            places.append(Place(triton, state, triton in drained, records.active(card.id, triton),
                                failure.reason if failure else None))
        policy = policy_of(card.warm, card.idle_minutes, card.warm_windows, changed.get(card.id))
        found.append(ModelView(card, policy, places, waiting[card.id], asked.get(card.id)))
    return make_response(render_template(
        "admin/models.html", models=found, tritons=_tritons(), drained=drained,
        problem=problem, about=about), status)
