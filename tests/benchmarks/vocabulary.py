"""Answers with the distribution over the whole vocabulary for each prompt token: seconds, bytes, memory."""
from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from model_repository.catalog import Model
from tests.benchmarks import processes
from tests.benchmarks.client import BenchmarkError, Connection
from tests.benchmarks.servers import Server

PROMPT_TOKENS = 512
#: One entry of the answer holds this once.
MARK = b'"rank"'


@dataclass(frozen=True)
class WholeVocabulary:
    """What one answer took, or why there was none."""

    failure: str
    seconds_to_first: float
    seconds: float
    bytes: int
    entries: int
    #: Peak resident bytes of the largest process of each role, while it answered and before it was asked.
    peaks: Mapping[str, int]
    idle: Mapping[str, int]
    cpu: Mapping[str, float]


class Counter:
    """Takes an answer of any size and keeps only counts, and the start, which tells what went wrong."""

    def __init__(self) -> None:
        self.bytes = self.entries = 0
        self.start = b""
        self._tail = b""

    def __call__(self, piece: bytes) -> None:
        """Counts one piece; an entry's mark may be cut by two."""
        self.bytes += len(piece)
        if len(self.start) < 500:
            self.start += piece[:500]
        piece = self._tail + piece
        self.entries += piece.count(MARK)
        self._tail = piece[-len(MARK) + 1 :]


async def measure(server: Server, model: Model, patience: float, reserve: int) -> WholeVocabulary:
    """Ask once for 512 prompt tokens, giving up after `patience` seconds or when less than `reserve` bytes
    of the machine's memory are left."""
    rng = random.Random("whole vocabulary")
    await _ask(server, model, rng, prompt_tokens=2, counter=Counter())  # what is made once per vocabulary
    with processes.PeakMemory(server.pid, reserve) as before:
        pass
    counter, failure, first, seconds = Counter(), "", 0.0, 0.0
    cpu = processes.cpu_seconds(server.pid)
    after: dict[str, float] = {}
    with processes.PeakMemory(server.pid, reserve) as memory:
        try:
            first, seconds = await asyncio.wait_for(_ask(server, model, rng, PROMPT_TOKENS, counter), patience)
            after = processes.cpu_seconds(server.pid)
        except TimeoutError:
            failure = f"no whole answer in {patience:.0f} s"
        except (ConnectionError, BenchmarkError) as error:
            failure = str(error)
    if memory.exceeded:
        failure = f"was killed at {memory.highest_sum / 2**30:.1f} GiB, with the machine's memory nearly used up"
    spent = processes.spent(cpu, after)
    return WholeVocabulary(
        failure, first, seconds, counter.bytes, counter.entries, memory.by_role(), before.by_role(), spent
    )


async def _ask(
    server: Server, model: Model, rng: random.Random, prompt_tokens: int, counter: Counter
) -> tuple[float, float]:
    prompt = [rng.randrange(1000, model.vocab_size * 3 // 4) for _ in range(prompt_tokens)]
    body = {"model": model.id, "prompt": prompt, "prompt_logprobs": -1, "max_tokens": 1, "temperature": 0}
    connection = Connection(server.target)
    try:
        exchange = await connection.post(orjson.dumps(body), counter)
    finally:
        connection.close()
    if exchange.status != 200:
        raise BenchmarkError(f"HTTP {exchange.status}: {counter.start[:300].decode(errors='replace')}")
    expected = (prompt_tokens - 1) * model.vocab_size
    if counter.entries < expected:
        raise BenchmarkError(f"{counter.entries} entries came instead of {expected}")
    return exchange.seconds_to_first, exchange.seconds
