"""What the database knows better than any process: holds and spend, asked when somebody reads the page.

Several frontends at one database say the same, so these are not to be added up.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.db import Database
from frontend.db.figures import figures
from frontend.errors import Unavailable
from frontend.spend.limits import WARN_PERCENT, show_spend


class DatabaseFigures(Collector):
    """Holds and spend. Where the database does not answer they are missing, and `strata_database_up` is 0."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        up = GaugeMetricFamily("strata_database_up", "Whether the database answered.")
        try:
            with self._database.read() as connection:
                known = figures(connection)
            month = show_spend(self._database)
        except Unavailable:
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        expired = CounterMetricFamily("strata_holds_expired", "Holds that the keeper settled: their leases ran out.")
        expired.add_metric((), known.holds_expired)
        spent = CounterMetricFamily("strata_spend_dollars", "What uptime of engines has cost.", labels=("model",))
        for model, dollars in known.spent.items():
            spent.add_metric((model,), dollars)
        return [
            up, expired, spent,
            _gauge("strata_holds_open", "Holds of running requests.", "model", known.holds_open),
            _gauge("strata_tokens_held", "Tokens in open holds.", "model", known.tokens_held),
            _gauge("strata_spend_month_dollars", "What uptime of engines has cost this month, UTC; of all models: *.",
                   "scope", {spend.scope: spend.dollars for spend in month}),
            _gauge("strata_spend_limit_dollars", "The Spend limits for a month.",
                   "scope", {spend.scope: spend.limit for spend in month if spend.limit is not None}),
            _gauge("strata_spend_limit_near", f"Whether {WARN_PERCENT} % of a Spend limit is used: 1, or 0.", "scope", {
                spend.scope: spend.dollars * 100 >= spend.limit * WARN_PERCENT
                for spend in month if spend.limit is not None}),
        ]


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, documentation, labels=(label,))
    for value, number in values.items():
        gauge.add_metric((value,), number)
    return gauge
