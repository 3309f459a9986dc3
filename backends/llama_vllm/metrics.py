"""vLLM's figures on Triton's own /metrics.

Counting happens per engine step, in the engine's loop, and must cost nothing; every figure set in Triton is a message
to another process. So steps only add up numbers here, and `publish` passes on the sums about once a second.

This Triton has no histograms for custom metrics: they are counters in Prometheus's own shape, `_bucket` with the
label `le`, `_sum` and `_count`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import Any, Protocol

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
PER_TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
FINISH_REASONS = ("stop", "length", "abort", "error")


class Publisher(Protocol):
    """Sets figures outside. Labels are (name, value) pairs beside the model's own."""

    def gauge(self, name: str, help: str, value: float, labels: tuple[tuple[str, str], ...] = ()) -> None:
        """Sets a gauge."""

    def counter(self, name: str, help: str, total: float, labels: tuple[tuple[str, str], ...] = ()) -> None:
        """Raises a counter to this total."""


class Durations:
    """Seconds, counted per bucket."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self._counts[bisect_left(self._buckets, seconds)] += 1
        self._sum += seconds

    def publish(self, publisher: Publisher, name: str, help: str) -> None:
        """Passes on the sums so far; buckets are cumulative, as Prometheus wants them."""
        edges = [*(f"{edge:g}" for edge in self._buckets), "+Inf"]
        for edge, total in zip(edges, accumulate(self._counts), strict=True):
            publisher.counter(f"{name}_bucket", help, total, (("le", edge),))
        publisher.counter(f"{name}_sum", help, self._sum)
        publisher.counter(f"{name}_count", help, sum(self._counts))


class Figures:
    """Sums over the life of the model, engine restarts included."""

    def __init__(self) -> None:
        self._running = self._waiting = 0
        self._kv_cache_usage = 0.0
        self._slab_bytes = self._waiting_for_slabs = 0
        self._prompt_tokens = self._generation_tokens = self._preemptions = 0
        self._first_token = Durations(FIRST_TOKEN_BUCKETS)
        self._per_token = Durations(PER_TOKEN_BUCKETS)
        self._finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))

    def engine_gone(self) -> None:
        """Nothing runs or waits in an engine that has died."""
        self._running = self._waiting = 0
        self._kv_cache_usage = 0.0

    def add(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> None:
        """Takes what vLLM says after one engine step."""
        if scheduler is not None:
            self._running = scheduler.num_running_reqs
            self._waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self._kv_cache_usage = scheduler.kv_cache_usage
        if iteration is None:
            return
        self._prompt_tokens += iteration.num_prompt_tokens
        self._generation_tokens += iteration.num_generation_tokens
        self._preemptions += iteration.num_preempted_reqs
        for seconds in iteration.time_to_first_tokens_iter:
            self._first_token.add(seconds)
        for request in iteration.finished_requests:
            self._finished[str(request.finish_reason)] += 1
            if request.num_generation_tokens > 1:
                self._per_token.add(request.mean_time_per_output_token)

    def shared_memory(self, used: int, waiting: int) -> None:
        """Takes the bytes that activations hold in shared memory, and how many requests wait for some."""
        self._slab_bytes, self._waiting_for_slabs = used, waiting

    def aborted(self, choices: int) -> None:
        """Choices whose caller went away: vLLM drops them without a word."""
        self._finished["abort"] += choices

    def publish(self, publisher: Publisher) -> None:
        """Passes everything on."""
        publisher.gauge("strata_requests_running", "Choices that are being computed", self._running)
        publisher.gauge("strata_requests_waiting", "Choices that wait for their turn", self._waiting)
        publisher.gauge("strata_kv_cache_usage_ratio", "Share of the KV cache in use", self._kv_cache_usage)
        publisher.gauge(
            "strata_activation_bytes", "Shared memory held for the activations of requests in flight", self._slab_bytes
        )
        publisher.gauge(
            "strata_activation_requests_waiting", "Requests that wait for shared memory", self._waiting_for_slabs
        )
        publisher.counter("strata_prompt_tokens_total", "Prompt tokens processed", self._prompt_tokens)
        publisher.counter("strata_generation_tokens_total", "Tokens generated", self._generation_tokens)
        publisher.counter("strata_preemptions_total", "Choices set back for want of KV cache", self._preemptions)
        self._first_token.publish(
            publisher, "strata_time_to_first_token_seconds", "Seconds from arrival to the first token"
        )
        self._per_token.publish(
            publisher, "strata_time_per_output_token_seconds", "Mean seconds per token after the first, per choice"
        )
        for reason, total in self._finished.items():
            publisher.counter(
                "strata_requests_finished_total", "Choices that ended, by reason", total, (("reason", reason),)
            )


class StepCounter:
    """What vLLM calls after every step, in place of its own loggers."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Adds one step."""
        self._figures.add(scheduler_stats, iteration_stats)


def count_steps(engine: AsyncLLM, figures: Figures) -> None:
    """Has the engine report to these figures alone: vLLM's own loggers do Prometheus work at every token."""
    engine.logger_manager.stat_loggers = [StepCounter(figures)]
