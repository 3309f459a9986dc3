"""How many requests of Jobs may be at a model, beside people's and among each other."""
from __future__ import annotations

import json
from dataclasses import replace

import pytest

from frontend.inference import ModelCard
from frontend.jobs.governor import PRESENCE, allowed
from frontend.jobs.pace import Pace
from frontend.warmth.scripts import Crowd
from model_repository import catalog

CARD = ModelCard.from_json(json.dumps(catalog.load()["tiny-llama"].card()))
NEVER = float("inf")


@pytest.mark.parametrize(("places", "engines", "active", "waiting", "ago", "expected"), [
    (64, 1, 0, 0, NEVER, 48),
    (64, 2, 0, 0, NEVER, 96),
    (256, 1, 0, 0, PRESENCE, 192),
    (256, 1, 1, 0, NEVER, 8),
    (256, 1, 0, 0, PRESENCE - 1, 8),
    (8, 1, 3, 0, 0, 1),
    (64, 1, 64, 1, 0, 0),
    (1, 1, 0, 0, NEVER, 1),
])
def test_people_go_first(
    places: int, engines: int, active: int, waiting: int, ago: float, expected: int
) -> None:
    card = replace(CARD, max_requests=places)
    assert allowed(card, engines, Crowd(active, waiting, 0, ago), Pace()) == expected
