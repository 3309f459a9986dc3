"""Looks at the engine from outside: Triton's metrics page."""
from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from frontend.db import Database, balances
from frontend.limits.store import connect
from tests.stack import Stack

#: Seconds in which what a client asked for is stopped once it has gone, and between two figures of an engine.
STOPPED_WITHIN, PUBLISHED_EVERY = 2.0, 1.0

_SAMPLE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


def metric(stack: Stack, name: str, model: str, **labels: str) -> float:
    """The sum of one of the engine's figures over a model's series with these labels. Raises KeyError without any."""
    page = httpx.get(stack.metrics, timeout=10).text
    wanted = {f'{label}="{value}"' for label, value in {"model": model, **labels}.items()}
    values = [float(m["value"]) for m in _SAMPLE.finditer(page)
              if m["name"] == name and wanted <= set(m["labels"].split(","))]
    if not values:
        raise KeyError(f"{name} of {model} is not on {stack.metrics}")
    return sum(values)


def busy(stack: Stack, model: str) -> float:
    """How many requests the engine runs or queues."""
    return metric(stack, "strata_requests_running", model) + metric(stack, "strata_requests_waiting", model)


def ask_and_leave(stack: Stack, headers: Mapping[str, str], body: dict[str, Any]) -> None:
    """Send a completions request, and close the connection, unread, as soon as the engine works on it."""
    address = urlsplit(stack.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Authorization": headers["Authorization"], "Content-Type": "application/json"})
        deadline = time.monotonic() + 20
        while not busy(stack, body["model"]):
            assert time.monotonic() < deadline, "the engine never saw the request"
    finally:
        connection.close()


def wait_until_left(stack: Stack) -> None:
    """Wait until no request holds tokens or a slot of its key. The frontend gives both back once it has stopped the
    engine, and they show at once, where the engine's figures are a second old."""
    database, redis = Database(f"sqlite:///{stack.home / 'strata.db'}"), connect(f"unix://{stack.home / 'valkey.sock'}")
    deadline = time.monotonic() + 20
    try:
        while True:
            with database.read() as connection:
                left = [*balances.beats(connection), *redis.scan_iter("strata:slots:*:active")]
            if not left:
                return
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
    finally:
        redis.close()
        database.close()


def wait_until_idle(stack: Stack, model: str, patience: float = 20.0) -> None:
    """Wait until the engine neither runs nor queues a request."""
    deadline = time.monotonic() + patience
    while still := busy(stack, model):
        assert time.monotonic() < deadline, f"{model} still has {still} requests"
        time.sleep(0.05)
