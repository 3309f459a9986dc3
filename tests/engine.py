"""Looks at the engine from outside: Triton's metrics page."""
from __future__ import annotations

import re
import time

import httpx

from tests.stack import Stack

_SAMPLE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


def metric(stack: Stack, name: str, model: str) -> float:
    """The sum of one of the engine's figures over a model's series. Raises KeyError when there is none."""
    page = httpx.get(stack.metrics, timeout=10).text
    values = [float(m["value"]) for m in _SAMPLE.finditer(page)
              if m["name"] == name and f'model="{model}"' in m["labels"]]
    if not values:
        raise KeyError(f"{name} of {model} is not on {stack.metrics}")
    return sum(values)


def wait_until_idle(stack: Stack, model: str, patience: float = 20.0) -> None:
    """Wait until the engine neither runs nor queues a request."""
    deadline = time.monotonic() + patience
    while True:
        busy = metric(stack, "strata_requests_running", model) + metric(stack, "strata_requests_waiting", model)
        if busy == 0:
            return
        assert time.monotonic() < deadline, f"{model} still has {busy} requests"
        time.sleep(0.05)
