"""The engine's figures add up as Prometheus wants them."""

from __future__ import annotations

import pytest
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

from backends.llama_vllm.metrics import FINISH_REASONS, Durations, Figures

Labels = tuple[tuple[str, str], ...]


class Page:
    """What was published last, by name and labels."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self.counters: dict[tuple[str, Labels], float] = {}

    def gauge(self, name: str, help: str, value: float, labels: Labels = ()) -> None:
        assert help
        assert not labels
        self.gauges[name] = value

    def counter(self, name: str, help: str, total: float, labels: Labels = ()) -> None:
        assert help
        self.counters[name, labels] = total

    def plain(self, name: str) -> float:
        return self.counters[name, ()]

    def buckets(self, name: str) -> dict[str, float]:
        return {labels[0][1]: total for (found, labels), total in self.counters.items() if found == f"{name}_bucket"}


def test_durations_are_counted_in_every_bucket_that_holds_them() -> None:
    durations, page = Durations((0.1, 1.0, 10.0)), Page()
    durations.publish(page, "x", "help")
    assert page.buckets("x") == {"0.1": 0, "1": 0, "10": 0, "+Inf": 0}
    for seconds in (0.0, 0.1, 0.100001, 1.0, 5.0, 10.0, 11.0):
        durations.add(seconds)
    durations.publish(page, "x", "help")
    assert page.buckets("x") == {"0.1": 2, "1": 4, "10": 6, "+Inf": 7}
    assert page.plain("x_count") == 7
    assert page.plain("x_sum") == pytest.approx(27.200001)


def step(first: tuple[float, ...], finished: tuple[FinishedRequestStats, ...]) -> IterationStats:
    """A step in which requests got their first tokens after so many seconds, and some finished."""
    stats = IterationStats()
    stats.num_generation_tokens, stats.num_preempted_reqs = 5, 1
    stats.prompt_token_stats.total = 7
    stats.time_to_first_tokens_iter = list(first)
    stats.finished_requests = list(finished)
    return stats


def test_steps_add_up() -> None:
    figures, page = Figures(), Page()
    figures.publish(page)
    assert set(page.gauges.values()) | set(page.counters.values()) == {0}
    ended = (FinishedRequestStats(FinishReason.LENGTH, num_generation_tokens=3, mean_time_per_output_token=0.25),
             FinishedRequestStats(FinishReason.STOP, num_generation_tokens=1))  # one token has no time between
    running = SchedulerStats(
        num_running_reqs=3, num_waiting_reqs=2, num_skipped_waiting_reqs=4, kv_cache_usage=0.5)
    figures.add(running, step((0.003, 4.0), ()))
    figures.add(None, step((0.03,), ended))
    figures.aborted(2)
    figures.shared_memory(4096, 6)
    figures.publish(page)
    assert page.gauges == {
        "strata_requests_running": 3, "strata_requests_waiting": 6, "strata_kv_cache_usage_ratio": 0.5,
        "strata_activation_bytes": 4096, "strata_activation_requests_waiting": 6,
    }  # fmt: skip
    assert page.plain("strata_prompt_tokens_total") == 14
    assert page.plain("strata_generation_tokens_total") == 10
    assert page.plain("strata_preemptions_total") == 2
    assert page.plain("strata_time_to_first_token_seconds_count") == 3
    assert page.plain("strata_time_to_first_token_seconds_sum") == pytest.approx(4.033)
    assert page.plain("strata_time_per_output_token_seconds_count") == 1
    assert page.plain("strata_time_per_output_token_seconds_sum") == 0.25
    finished = {reason: page.counters["strata_requests_finished_total", (("reason", reason),)]
                for reason in FINISH_REASONS}
    assert finished == {"stop": 1, "length": 1, "abort": 2, "error": 0}


def test_an_engine_that_died_runs_nothing_and_what_it_did_stays_counted() -> None:
    figures, page = Figures(), Page()
    figures.add(SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.5), step((0.1,), ()))
    figures.engine_gone()
    figures.publish(page)
    assert set(page.gauges.values()) == {0}
    assert page.plain("strata_generation_tokens_total") == 5
