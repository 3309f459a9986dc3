"""The parts that routes work with: made once by the application, reached through the current one."""
from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flask import current_app
from redis import Redis

from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.inference import Inference
from frontend.jobs.files import Files
from frontend.jobs.service import Jobs
from frontend.limits.attempts import Attempts
from frontend.limits.rate import Rate
from frontend.limits.slots import Slots
from frontend.limits.threads import Threads
from frontend.settings import Settings
from frontend.warmth.places import Places
from frontend.warmth.records import Records

EXTENSION = "strata"


@dataclass(frozen=True)
class Parts:
    """Everything that lives as long as the process."""

    settings: Settings
    database: Database
    redis: Redis
    inference: Inference
    rate: Rate
    slots: Slots
    threads: Threads
    leases: Leases
    places: Places
    records: Records
    attempts: Attempts
    jobs: Jobs
    files: Files


def parts() -> Parts:
    """The current application's parts."""
    return cast(Parts, current_app.extensions[EXTENSION])
