"""How much two engines, pinned to one core each, do against one: `python -m tests.benchmarks.endpoints`.

Unstreamed requests go straight to Triton, so that hardly anything but the engines needs the cores.
"""
from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from frontend.inference import Generation, Inference
from model_repository import catalog
from tests.benchmarks import servers
from tests.tritons import Triton

MODEL, TOKENS, AT_ONCE, REQUESTS = "tiny-llama", 256, 8, 48


def rate(inference: Inference, addresses: list[str]) -> float:
    """Tokens a second, of as many requests at once for each engine."""
    generation = Generation((128000, 9906), b'{"max_tokens": %d, "ignore_eos": true, "temperature": 0}' % TOKENS, False)

    def one(number: int) -> int:
        address = addresses[number % len(addresses)]
        events = inference.generate(MODEL, address, [generation], str(number), 300, lambda cancel: None)
        return sum(len(event.token_ids) for event in events)

    with ThreadPoolExecutor(AT_ONCE * len(addresses)) as pool:
        list(pool.map(one, range(AT_ONCE * len(addresses))))
        started = time.monotonic()
        tokens = sum(pool.map(one, range(REQUESTS * len(addresses))))
        return tokens / (time.monotonic() - started)


def main() -> None:
    """Start both, measure each alone and both together, and say what came of it."""
    checkpoints = servers.checkpoint(catalog.load()[MODEL]).parent
    with tempfile.TemporaryDirectory(prefix="strata-endpoints-") as folder:
        tritons = [Triton(Path(folder) / str(core), MODEL, checkpoints, core) for core in range(2)]
        try:
            addresses = [triton.address for triton in tritons]
            inference = Inference(addresses)
            for address in addresses:
                inference.repository.load(MODEL, address, 300)
            alone = [rate(inference, [address]) for address in addresses]
            both = rate(inference, addresses)
            inference.close()
        finally:
            for triton in tritons:
                triton.stop()
    print("## Two engines, each on a core of its own\n")
    print(f"each alone: {alone[0]:.0f} and {alone[1]:.0f} tokens/s; both: {both:.0f}, "
          f"{both / max(alone):.2f} times the faster one")


if __name__ == "__main__":
    main()
