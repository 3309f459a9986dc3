"""Completions at one load after another: tokens a second, time to the first token, CPU a token."""
from __future__ import annotations

import asyncio
import math
import random
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import quantiles

import orjson

from model_repository.catalog import Model
from tests.benchmarks import processes
from tests.benchmarks.client import BenchmarkError, Connection, Exchange
from tests.benchmarks.servers import Server

PROMPT_TOKENS, MAX_TOKENS = 32, 64
#: However slow a server is, each connection asks so often, and all together so often.
FEWEST_WAVES, FEWEST_REQUESTS = 3, 10


@dataclass(frozen=True)
class Load:
    """How many requests are in flight at once, and whether their answers are streamed."""

    at_once: int
    stream: bool

    def __str__(self) -> str:
        return f"{'streamed' if self.stream else 'whole'} ×{self.at_once}"


@dataclass(frozen=True)
class Figures:
    """What one server did under one load for some seconds."""

    requests: int
    tokens: int
    seconds: float
    #: Seconds to the first event of each request; to the whole answer where it is not streamed.
    first: tuple[float, ...]
    #: CPU seconds of the server by role, and of the client.
    cpu: Mapping[str, float]
    client_cpu: float
    #: CPU seconds that everything else on the machine took meanwhile: what they stole is noise.
    others_cpu: float
    pieces: int

    @property
    def rate(self) -> float:
        """Completion tokens a second."""
        return self.tokens / self.seconds

    @property
    def cpu_per_thousand(self) -> float:
        """CPU seconds of the server for 1,000 completion tokens."""
        return 1000 * sum(self.cpu.values()) / self.tokens

    def first_percentile(self, percent: int) -> float:
        """Milliseconds to the first event (or to the whole answer) that this share of requests stayed below."""
        return 1000 * quantiles(self.first, n=100, method="inclusive")[percent - 1]


def pooled(rounds: list[Figures]) -> Figures:
    """Several rounds as one longer one."""
    cpu = {role: sum(one.cpu.get(role, 0.0) for one in rounds) for role in {role for one in rounds for role in one.cpu}}
    return Figures(
        sum(one.requests for one in rounds),
        sum(one.tokens for one in rounds),
        sum(one.seconds for one in rounds),
        tuple(seconds for one in rounds for seconds in one.first),
        cpu,
        sum(one.client_cpu for one in rounds),
        sum(one.others_cpu for one in rounds),
        sum(one.pieces for one in rounds),
    )


@dataclass
class Answer:
    """Keeps the pieces of an answer; reads them only after the end."""

    stream: bool
    pieces: list[bytes] = field(default_factory=list)

    def tokens(self) -> int:
        """Completion tokens, as the server counted them."""
        body = b"".join(self.pieces)
        if not self.stream:
            return int(orjson.loads(body)["usage"]["completion_tokens"])
        events = body.rstrip().split(b"\n\n")
        if events[-1] != b"data: [DONE]":
            raise BenchmarkError(f"a stream ended with {events[-1][:300]!r}")
        return int(orjson.loads(events[-2].removeprefix(b"data: "))["usage"]["completion_tokens"])


def bodies(model: Model, stream: bool, seed: str) -> Iterator[bytes]:
    """Requests without end, the same for each server: prompts of random ids that share no prefix, greedy, one length.

    Greedy, because sampling costs every engine the same and would only hide differences.
    """
    rng = random.Random(seed)
    common = {"model": model.id, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    if stream:
        common |= {"stream": True, "stream_options": {"include_usage": True}}
    while True:
        # Special tokens stand at either end of the vocabulary.
        prompt = [rng.randrange(1000, model.vocab_size * 3 // 4) for _ in range(PROMPT_TOKENS)]
        yield orjson.dumps(common | {"prompt": prompt})


async def measure(server: Server, model: Model, load: Load, seconds: float, seed: str) -> Figures:
    """Keep `at_once` requests in flight for about so many seconds, after one unmeasured wave.

    Every connection asks equally often, so that hardly any time is measured in which only stragglers are left.
    """
    connections = [Connection(server.target) for _ in range(load.at_once)]
    requests = bodies(model, load.stream, seed)
    try:
        started = time.perf_counter()
        await _run(connections, requests, load, 1)
        fill = math.ceil(seconds / (time.perf_counter() - started))
        waves = max(fill, FEWEST_WAVES, math.ceil(FEWEST_REQUESTS / load.at_once))
        cpu, own, everybody = processes.cpu_seconds(server.pid), _own_cpu(), processes.machine_cpu_seconds()
        started = time.perf_counter()
        done = await _run(connections, requests, load, waves)
        elapsed, own = time.perf_counter() - started, _own_cpu() - own
        spent = processes.spent(cpu, processes.cpu_seconds(server.pid))
        others = max(processes.machine_cpu_seconds() - everybody - own - sum(spent.values()), 0.0)
    finally:
        for connection in connections:
            connection.close()
    tokens = sum(answer.tokens() for _, answer in done)
    if tokens != MAX_TOKENS * len(done):
        raise BenchmarkError(f"{server.target.name} made {tokens} tokens in {len(done)} answers of {MAX_TOKENS}")
    first = tuple(exchange.seconds_to_first if load.stream else exchange.seconds for exchange, _ in done)
    pieces = sum(len(answer.pieces) for _, answer in done)
    return Figures(len(done), tokens, elapsed, first, spent, own, others, pieces)


async def _run(
    connections: list[Connection], requests: Iterator[bytes], load: Load, waves: int
) -> list[tuple[Exchange, Answer]]:
    """Each connection asks `waves` times, its next request when the last one is answered."""
    done: list[tuple[Exchange, Answer]] = []

    async def ask(connection: Connection) -> None:
        for _ in range(waves):
            answer = Answer(load.stream)
            exchange = await connection.post(next(requests), answer.pieces.append)
            if exchange.status != 200:
                raise BenchmarkError(f"HTTP {exchange.status}: {b''.join(answer.pieces)[:500]!r}")
            done.append((exchange, answer))

    async with asyncio.TaskGroup() as tasks:
        for connection in connections:
            tasks.create_task(ask(connection))
    return done


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
