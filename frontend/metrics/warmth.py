"""What Redis knows of models: who is at them, who waits for them, and how their loads went.

Several frontends at one Redis say the same, so these are not to be added up.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from redis import Redis
from redis.exceptions import RedisError

from frontend.warmth.records import Records


class WarmthFigures(Collector):
    """Places and loads. Where Redis does not answer they are missing, and `strata_redis_up` is 0."""

    def __init__(
        self, redis: Redis, models: Sequence[str], urls: Sequence[str] | Mapping[str, Sequence[str]]
    ) -> None:
        """`urls` are the addresses of the Tritons that serve all of `models`, or those of each."""
        self._records, self._models = Records(redis), models
        self._addresses = {model: urls.get(model, ()) if isinstance(urls, Mapping) else urls for model in models}

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        up = GaugeMetricFamily("strata_redis_up", "Whether Redis answered.")
        try:
            waiting, loads = self._records.waiting(self._models), self._records.loads()
            active = {model: sum(self._records.active(model, address) for address in addresses)
                      for model, addresses in self._addresses.items()}
        except RedisError:
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        requests = GaugeMetricFamily(
            "strata_model_requests", "Requests that a model has, and that wait for it.", labels=("model", "state"))
        for state, numbers in (("active", active), ("waiting", waiting)):
            for model, number in numbers.items():
                requests.add_metric((model, state), number)
        ended = CounterMetricFamily(
            "strata_model_loads", "Loads of engines that ended, by how.", labels=("model", "outcome"))
        for (model, outcome), number in loads.items():
            ended.add_metric((model, outcome), number)
        return [up, requests, ended]
