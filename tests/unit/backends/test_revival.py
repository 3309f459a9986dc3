"""An engine that died is started again a few times; a stub that can't do that ends, so that somebody hears of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from backends.llama_vllm import revival

PROGRAM = """
import asyncio, sys
from backends.llama_vllm import revival

revival.WAITS = (0.0,) * len(revival.WAITS)
works_at, tries, told_at = int(sys.argv[1]), 0, int(sys.argv[2])

async def start():
    global tries
    tries += 1
    print("try", flush=True)
    if tries == told_at:
        asyncio.get_running_loop().call_soon_threadsafe(reviving.cancel)
    if tries != works_at:
        raise RuntimeError("CUDA out of memory")

async def main():
    global reviving
    reviving = asyncio.ensure_future(revival.revive(start))
    try:
        await reviving
    except asyncio.CancelledError:
        print("unloaded")

asyncio.run(main())
print("goes on")
"""


def run(works_at: int, unloaded_at: int = 0) -> tuple[int, list[str], str]:
    """A process whose engine starts at this attempt, and that is told to unload during that one: how it ends."""
    command = [sys.executable, "-c", PROGRAM, str(works_at), str(unloaded_at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3])
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_an_engine_that_starts_at_last_goes_on() -> None:
    last = len(revival.WAITS)
    assert run(works_at=1)[:2] == (0, ["try", "goes on"])
    assert run(works_at=last)[:2] == (0, ["try"] * last + ["goes on"])


def test_a_stub_that_can_not_start_its_engine_ends_and_says_why() -> None:
    status, said, log = run(works_at=0)
    assert (status, said) == (revival.GAVE_UP, ["try"] * len(revival.WAITS))
    assert "CUDA out of memory" in log
    assert "its model is to be loaded anew" in log


def test_one_that_is_unloaded_meanwhile_ends_in_order() -> None:
    last = len(revival.WAITS)
    assert run(works_at=0, unloaded_at=1)[:2] == (0, ["try", "unloaded", "goes on"])
    assert run(works_at=0, unloaded_at=last)[:2] == (0, ["try"] * last + ["unloaded", "goes on"])
