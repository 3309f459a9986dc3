"""What a worker works with, and how its threads hear that it stops."""
from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field

from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.inference import Inference
from frontend.jobs.storage import Storage
from frontend.settings import Settings
from frontend.warmth.places import Places


@dataclass(frozen=True)
class Tools:
    """All that lives as long as the worker."""

    settings: Settings
    database: Database
    inference: Inference
    places: Places
    leases: Leases
    storage: Storage
    #: How lanes say whose they are. Never used again.
    worker: str = field(default_factory=lambda: secrets.token_hex(8))
    #: Set when nothing new is to be begun, and when what could not be stored is given up.
    stopping: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
