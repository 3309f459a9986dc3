"""The keeper: what looks after the service by itself, beside the processes that answer requests."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from frontend.budgets.expiry import expire_grants
from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.errors import Unavailable
from frontend.inference import Inference
from frontend.keeper.sweep import Sweep
from frontend.keeper.warmth import Warmth
from frontend.limits.store import connect
from frontend.settings import Settings
from frontend.spend.limits import is_paused, warn
from frontend.spend.uptime import UptimeMeter

#: Seconds between two rounds of each duty, and between two looks at engines for what they cost.
ROUND, METER_ROUND = 1.0, 5.0
#: Seconds between two looks at who waits for which model, and at whether the models' processes live.
WARMTH_ROUND, LIFE_ROUND = 0.25, 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Duty:
    """Something that the keeper does again and again, on a thread of its own."""

    name: str
    round: Callable[[], object]
    every: float


def run(settings: Settings) -> None:
    """Make rounds until the process is told to stop. It keeps nothing, so it may be ended at any moment."""
    database, inference = Database(settings.database_url), Inference(settings.triton_urls)
    _until_possible(lambda: migrate(database))
    warmth = Warmth(database, connect(settings.redis_url), inference, settings.models, settings.max_loaded,
                    lambda model: not is_paused(database, model), WARMTH_ROUND)
    sweep = Sweep(database, settings.hold_lease_seconds, ROUND)
    meter = UptimeMeter(database, inference, settings.models)
    duties = (
        Duty("holds", sweep.round, ROUND),
        Duty("grants", lambda: expire_grants(database), ROUND),
        Duty("uptime", meter.round, METER_ROUND),
        Duty("spend", lambda: warn(database), METER_ROUND),
        Duty("life", warmth.look_for_life, LIFE_ROUND),
    )
    for duty in duties:
        threading.Thread(target=_keep_doing, args=(duty,), name=duty.name, daemon=True).start()
    _keep_doing(Duty("warmth", warmth.round, WARMTH_ROUND))


def _keep_doing(duty: Duty) -> None:
    """One duty for ever. A failure is logged once, and tried again in the next round."""
    failing: str | None = None
    while True:
        try:
            duty.round()
        except Exception as error:
            words = error.message if isinstance(error, Unavailable) else repr(error)
            if words != failing:
                _log.error("duty_failed", duty=duty.name, exc_info=error)
            failing = words
        else:
            if failing is not None:
                _log.info("duty_works_again", duty=duty.name)
            failing = None
        time.sleep(duty.every)


def _until_possible(work: Callable[[], object]) -> None:
    while True:
        try:
            work()
            return
        except Unavailable:
            time.sleep(ROUND)
