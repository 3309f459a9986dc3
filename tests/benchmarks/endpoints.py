"""How much two engines, pinned to one core each, do against one: `python -m tests.benchmarks.endpoints`.

Unstreamed requests go straight to Triton, so that hardly anything but the engines needs the cores. Cores are not
equally fast at every moment, so each round measures either engine alone and then both, and what both do is held against
the mean of the two alone in the same round.
"""
from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from frontend.inference import Generation, Inference
from model_repository import catalog
from tests.benchmarks import servers
from tests.tritons import Triton

MODEL, TOKENS, AT_ONCE = "tiny-llama", 256, 8


class Load:
    """Waves of requests, the next when the last one is answered, to several engines at once."""

    def __init__(self, inference: Inference, waves: int) -> None:
        self._inference, self._waves = inference, waves
        self._ids = count()

    def rates(self, addresses: Sequence[str]) -> list[float]:
        """Tokens a second of each. Whoever is done goes on until all are, so that none has the machine to itself."""
        made = dict.fromkeys(addresses, 0)

        def keep_busy(address: str) -> float:
            self._wave(address)  # does not count
            started, done, waves = time.monotonic(), 0.0, 0
            try:
                while min(made.values()) < self._waves:
                    self._wave(address)
                    waves, done = waves + 1, time.monotonic()
                    made[address] = waves
            finally:
                made[address] = max(waves, self._waves)  # nobody waits for one that failed
            return waves * AT_ONCE * TOKENS / (done - started)

        with ThreadPoolExecutor(len(addresses)) as pool:
            return list(pool.map(keep_busy, addresses))

    def _wave(self, address: str) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for tokens in pool.map(lambda _: self._ask(address), range(AT_ONCE)):
                if tokens != TOKENS:
                    raise RuntimeError(f"{tokens} tokens came, not {TOKENS}")

    def _ask(self, address: str) -> int:
        sampling = b'{"max_tokens": %d, "ignore_eos": true, "temperature": 0}' % TOKENS
        generation = Generation((128000, 9906), sampling, False)
        events = self._inference.generate(MODEL, address, [generation], str(next(self._ids)), 300, lambda cancel: None)
        return sum(len(event.token_ids) for event in events)


def main() -> None:
    """Start both, and in every round measure each alone and both together."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.endpoints", description=str(__doc__))
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--waves", type=int, default=4, help=f"of {AT_ONCE} requests, in each (%(default)s)")
    options = parser.parse_args()
    checkpoints = servers.checkpoint(catalog.load()[MODEL]).parent
    ratios = []
    print("## Two engines, each on a core of its own\n")
    print("| alone tok/s | together tok/s | times the mean alone |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="strata-endpoints-") as folder:
        tritons = [Triton(Path(folder) / str(core), MODEL, checkpoints, core) for core in range(2)]
        try:
            addresses = [triton.address for triton in tritons]
            inference = Inference(addresses)
            for address in addresses:
                inference.repository.load(MODEL, address, 300)
            load = Load(inference, options.waves)
            for _ in range(options.rounds):
                alone = [load.rates([address])[0] for address in addresses]
                both = load.rates(addresses)
                ratios.append(sum(both) / statistics.mean(alone))
                print(f"| {alone[0]:.0f}, {alone[1]:.0f} | {both[0]:.0f} + {both[1]:.0f} | {ratios[-1]:.2f} |",
                      flush=True)
            inference.close()
        finally:
            for triton in tritons:
                triton.stop()
    print(f"\nTwo engines make {statistics.median(ratios):.2f} times the tokens of one (median of the rounds).")


if __name__ == "__main__":
    main()
