"""Triton's own page of metrics has the engine's figures, and they move as requests do."""
from __future__ import annotations

import time
from typing import Any

import httpx

from tests.engine import ask_and_leave, metric, wait_until_idle
from tests.paid import until
from tests.stack import Stack

MODEL = "tiny-llama"
#: The end-of-text token of tiny-llama.
END = 128001
COUNTERS = ("strata_prompt_tokens_total", "strata_generation_tokens_total", "strata_preemptions_total",
            "strata_time_to_first_token_seconds_count", "strata_time_to_first_token_seconds_sum",
            "strata_time_per_output_token_seconds_count", "strata_time_per_output_token_seconds_sum")


def ask(http: httpx.Client, **fields: Any) -> None:
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "The sky is"} | fields)
    assert answer.status_code == 200, answer.text


def finished(stack: Stack) -> dict[str, float]:
    return {reason: metric(stack, "strata_requests_finished_total", MODEL, reason=reason)
            for reason in ("stop", "length", "abort", "error")}


def test_a_request_moves_what_is_counted(stack: Stack, http: httpx.Client) -> None:
    wait_until_idle(stack, MODEL)
    before, ended = {name: metric(stack, name, MODEL) for name in COUNTERS}, finished(stack)
    begun = time.monotonic()
    ask(http, n=2, max_tokens=8, ignore_eos=True)
    ask(http, max_tokens=8, allowed_token_ids=[END])  # whose first token is its last: there is no time between
    seconds = time.monotonic() - begun
    until(lambda: finished(stack) == ended | {"length": ended["length"] + 2, "stop": ended["stop"] + 1})
    now = {name: metric(stack, name, MODEL) - was for name, was in before.items()}
    for span, choices in (("strata_time_to_first_token_seconds", 3), ("strata_time_per_output_token_seconds", 2)):
        assert 0 < now.pop(f"{span}_sum") < choices * seconds
        assert metric(stack, f"{span}_bucket", MODEL, le="+Inf") == metric(stack, f"{span}_count", MODEL)
    assert now == {
        "strata_prompt_tokens_total": 3 * 4, "strata_generation_tokens_total": 2 * 8 + 1,
        "strata_preemptions_total": 0, "strata_time_to_first_token_seconds_count": 3,
        "strata_time_per_output_token_seconds_count": 2}


def test_who_leaves_is_counted_too(stack: Stack, http: httpx.Client) -> None:
    wait_until_idle(stack, MODEL)
    ended = finished(stack)
    ask_and_leave(stack, http.headers, {"model": MODEL, "prompt": "x", "max_tokens": 2000, "ignore_eos": True})
    until(lambda: finished(stack) == ended | {"abort": ended["abort"] + 1})
