"""Metrics that nobody knows of help nobody."""
from __future__ import annotations

from prometheus_client import REGISTRY
from redis import Redis

import frontend.metrics.events
from frontend.db import Database
from frontend.metrics.figures import DatabaseFigures
from frontend.metrics.warmth import WarmthFigures
from tests.stack import REPOSITORY


def test_the_readme_names_every_metric(database: Database, redis: Redis) -> None:
    assert frontend.metrics.events.__doc__  # imported for what it registers
    counted = [metric for metric in REGISTRY.collect() if metric.name.startswith("strata_")]
    known = [*counted, *DatabaseFigures(database).collect(), *WarmthFigures(redis, (), ()).collect()]
    names = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in known}
    assert len(names) >= 17
    readme = (REPOSITORY / "README.md").read_text()
    assert sorted(name for name in names if f"`{name}`" not in readme) == []
