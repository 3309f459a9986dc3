"""The keeper: what looks after the service by itself, beside the processes that answer requests."""
from __future__ import annotations

import time

from frontend.inference import Inference
from frontend.keeper.warmth import Warmth
from frontend.settings import Settings

#: Seconds between two rounds.
ROUND = 1.0


def run(settings: Settings) -> None:
    """Make rounds until the process is told to stop. It keeps nothing, so it may be ended at any moment."""
    warmth = Warmth(Inference(settings.triton_urls), settings.models)
    while True:
        warmth.round()
        time.sleep(ROUND)
