"""What the database knows better than any process: holds, spend and Jobs, asked when somebody reads the page.

Several frontends at one database say the same, so these are not to be added up.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.db import Database
from frontend.db.figures import figures
from frontend.db.job_figures import JobFigures, job_figures
from frontend.db.job_records import UNFINISHED
from frontend.errors import Unavailable
from frontend.spend.limits import WARN_PERCENT, show_spend


class DatabaseFigures(Collector):
    """Holds, spend and Jobs. Where the database does not answer they are missing, and `strata_database_up` is 0."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        up = GaugeMetricFamily("strata_database_up", "Whether the database answered.")
        try:
            with self._database.read() as connection:
                known, jobs = figures(connection), job_figures(connection)
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
            up, expired, spent, *_of_jobs(jobs),
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


def _of_jobs(known: JobFigures) -> list[Metric]:
    ended = CounterMetricFamily("strata_job_requests", "Requests of Jobs that ended, by how.", labels=("status",))
    ended.add_metric(("completed",), known.completed)
    ended.add_metric(("failed",), known.failed)
    retries = CounterMetricFamily("strata_job_retries", "Runs of requests of Jobs that had to be begun again.")
    retries.add_metric((), known.retries)
    waited = (datetime.now(UTC) - known.oldest).total_seconds() if known.oldest else 0.0
    oldest = GaugeMetricFamily("strata_jobs_oldest_waiting_seconds", "How long a Job waits that nobody has begun.")
    oldest.add_metric((), max(waited, 0.0))
    return [
        ended, retries, oldest,
        _gauge("strata_jobs", "Unfinished Jobs.", "status", {name: known.jobs.get(name, 0) for name in UNFINISHED}),
        _gauge("strata_job_requests_open", "Requests of unfinished Jobs that have no result yet.", "state",
               {"queued": max(known.waiting, 0), "running": known.running}),
    ]


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, documentation, labels=(label,))
    for value, number in values.items():
        gauge.add_metric((value,), number)
    return gauge
