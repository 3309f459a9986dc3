"""What Activations cost: the same requests with and without them, and how fast a large answer reaches its client."""
from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import orjson

from model_repository.catalog import Model
from tests.benchmarks import processes
from tests.benchmarks.client import BenchmarkError, Connection, Exchange
from tests.benchmarks.servers import Server

AT_ONCE = 8
#: The capture switched off; on, with nobody asking; and what is asked for.
OFF, UNUSED, LAST, ONE, ALL = "off", "unused", "one Layer, last position", "one Layer, all positions", "all Layers"
#: Bytes of the answer whose way to the client is measured.
LARGE = 64 * 2**20
BYTES_OF_A_NUMBER = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Work:
    """How long prompts and completions are."""

    name: str
    prompt_tokens: int
    max_tokens: int


WORK = (Work("prefill-heavy", 256, 8), Work("decode-heavy", 16, 48))


def asked(model: Model, variant: str) -> dict[str, Any]:
    """The fields that make a plain request one of this variant."""
    middle = model.n_layers // 2
    fields: dict[str, dict[str, Any]] = {
        LAST: {"layers": [middle], "positions": "last"}, ONE: {"layers": [middle]}, ALL: {"layers": "all"}}
    return {"activations": fields[variant]} if variant in fields else {}


def prompts(model: Model, work: Work, seed: str) -> Iterator[list[int]]:
    """Prompts of random ids without end: equal for equal seeds, and no two with a prefix in common."""
    rng = random.Random(seed)
    while True:
        yield [rng.randrange(1000, model.vocab_size * 3 // 4) for _ in range(work.prompt_tokens)]


def body(model: Model, work: Work, prompt: list[int], variant: str) -> bytes:
    """A whole answer in JSON, greedy and of one length."""
    return orjson.dumps({"model": model.id, "prompt": prompt, "max_tokens": work.max_tokens, "temperature": 0,
                         "ignore_eos": True} | asked(model, variant))


def least_bytes(model: Model, work: Work, variant: str) -> int:
    """What an answer's body has at least: base64 of all the numbers that were asked for."""
    rows = {LAST: 1, ONE: work.prompt_tokens + work.max_tokens - 1,
            ALL: model.n_layers * (work.prompt_tokens + work.max_tokens - 1)}.get(variant, 0)
    return rows * model.hidden_size * BYTES_OF_A_NUMBER[model.dtype] * 4 // 3


@dataclass
class Counter:
    """Takes an answer of any size; keeps its length, and its beginning for what went wrong."""

    bytes: int = 0
    start: bytes = b""

    def __call__(self, piece: bytes) -> None:
        """Counts one piece."""
        self.bytes += len(piece)
        if len(self.start) < 500:
            self.start += piece[:500]


@dataclass(frozen=True)
class Wave:
    """What one wave reached: completion tokens a second, and the CPU seconds of all the server's processes."""

    rate: float
    cpu: float


@dataclass
class Rates:
    """The waves of each variant; equal places were measured right after each other."""

    of: dict[str, list[Wave]] = field(default_factory=dict)

    def add(self, variant: str, wave: Wave) -> None:
        """One more wave."""
        self.of.setdefault(variant, []).append(wave)

    def rate(self, variant: str) -> float:
        """The median of tokens a second."""
        return median(wave.rate for wave in self.of[variant])

    def rate_ratio(self, variant: str, to: str) -> float:
        """The median of the ratios of tokens a second in waves that were measured together."""
        return median(one.rate / other.rate for one, other in zip(self.of[variant], self.of[to], strict=True))

    def cpu_ratio(self, variant: str, to: str) -> float:
        """The same of CPU seconds, which what else runs on the machine disturbs less."""
        return median(one.cpu / other.cpu for one, other in zip(self.of[variant], self.of[to], strict=True))


async def wave(server: Server, model: Model, work: Work, variant: str, seed: str) -> Wave:
    """AT_ONCE requests at once."""
    source = prompts(model, work, seed)
    bodies = [body(model, work, next(source), variant) for _ in range(AT_ONCE)]
    connections = [Connection(server.target) for _ in bodies]
    least = least_bytes(model, work, variant)
    try:
        before, started = processes.cpu_seconds(server.pid), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for connection, request in zip(connections, bodies, strict=True):
                tasks.create_task(post(connection, request, least))
        elapsed = time.perf_counter() - started
        cpu = sum(processes.spent(before, processes.cpu_seconds(server.pid)).values())
    finally:
        for connection in connections:
            connection.close()
    return Wave(len(bodies) * work.max_tokens / elapsed, cpu)


async def post(connection: Connection, request: bytes, least: int) -> Exchange:
    """One exchange. Raises BenchmarkError for an error, or for an answer with fewer bytes than it must have."""
    counter = Counter()
    exchange = await connection.post(request, counter)
    if exchange.status != 200 or counter.bytes < least:
        raise BenchmarkError(f"HTTP {exchange.status}, {counter.bytes} bytes: {counter.start[:300]!r}")
    return exchange


async def measure(off: Server, on: Server, model: Model, work: Work, rounds: int) -> Rates:
    """Each round runs every variant once, in an order that turns, so that drift hits all alike.

    Each has prompts of its own, since the prefix cache would answer a plain request from what another one computed.
    """
    rates, variants = Rates(), [OFF, UNUSED, LAST, ONE, ALL]
    for number in range(-1, rounds):  # the first round is not measured
        turn = number % len(variants)
        for variant in variants[turn:] + variants[:turn]:
            server = off if variant == OFF else on
            reached = await wave(server, model, work, variant, f"{work.name} {number} {variant}")
            if number >= 0:
                rates.add(variant, reached)
    return rates


@dataclass(frozen=True)
class Transport:
    """How a large answer reached its client. Seconds are medians over the rounds."""

    form: str
    bytes: int
    #: What the request took longer than the same one with a single row of Activations.
    seconds_more: float
    #: From the first to the last byte of the body.
    seconds_of_body: float

    @property
    def rate(self) -> float:
        """Megabytes of numbers a second, from the last token to the last byte."""
        return self.bytes / self.seconds_more / 1e6


async def transport(on: Server, model: Model, rounds: int) -> list[Transport]:
    """The way of LARGE bytes, or what the context allows, from the engine's worker to the client, in both forms."""
    layers = ["embedding", *range(model.n_layers), "final_norm"]
    row = len(layers) * model.hidden_size * BYTES_OF_A_NUMBER[model.dtype]
    rows = min(-(-LARGE // row), model.max_model_len - 1)
    work = Work("transport", rows - 3, 4)
    forms: dict[str, tuple[Mapping[str, str], int]] = {
        "file": ({"Accept": "application/vnd.safetensors"}, rows * row), "JSON": ({}, rows * row * 4 // 3)}
    found = []
    for form, (headers, least) in forms.items():
        target = replace(on.target, headers={**on.target.headers, **headers})
        connection = Connection(target)
        source = prompts(model, work, form)
        more, bodies = [], []
        try:
            for number in range(rounds + 1):
                prompt = next(source)
                plain = {"model": model.id, "prompt": prompt, "max_tokens": work.max_tokens, "temperature": 0,
                         "ignore_eos": True}
                few = plain | {"activations": {"layers": [0], "positions": "last"}}
                many = plain | {"activations": {"layers": layers}}
                small = await post(connection, orjson.dumps(few), 1)
                large = await post(connection, orjson.dumps(many), least)
                if number:  # the first is not measured: buffers grow to their size
                    more.append(large.seconds - small.seconds)
                    bodies.append(large.last - large.first)
        finally:
            connection.close()
        found.append(Transport(form, rows * row, median(more), median(bodies)))
    return found
