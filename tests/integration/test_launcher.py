"""The launcher with the real parts: what dies comes back, and no end of it leaves anything running."""
from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.local import checkpoints as builder
from deploy.local.settings import Settings
from model_repository import catalog
from tests.stack import Stack

SHARED_MEMORY = Path("/dev/shm")


def processes(home: Path) -> list[psutil.Process]:
    """Every process that was started for this STRATA_HOME, whoever its parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("STRATA_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def eventually(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def complete(stack: Stack) -> httpx.Response:
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 2}
    headers = {"Authorization": f"Bearer {stack.key}"}
    return httpx.post(f"{stack.url}/v1/completions", json=body, headers=headers, timeout=60)


def regions(home: Path) -> set[str]:
    prefix = Settings.read({"STRATA_HOME": str(home)}).shared_memory_prefix
    return {path.name for path in SHARED_MEMORY.glob(f"{prefix}*")}


def ends_cleanly(stack: Stack, by: signal.Signals, others: set[Path]) -> None:
    """It ends with status 0, and of its processes and its shared memory nothing is left. `others` are older regions."""
    everything = processes(stack.home)
    stack.process.send_signal(by)
    assert stack.process.wait(60) == 0
    assert psutil.wait_procs(everything, timeout=5)[1] == []
    assert processes(stack.home) == []
    assert regions(stack.home) == set()
    assert set(SHARED_MEMORY.glob("psm_*")) - others == set()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_dies_comes_back_and_nothing_is_left(tmp_path: Path, checkpoints: Path) -> None:
    model = catalog.load()["tiny-llama"]
    builder.build(model, checkpoints)
    own = tmp_path / "checkpoints"
    shutil.copytree(checkpoints / model.checkpoint, own / model.checkpoint)
    home = tmp_path / "home"
    others = set(SHARED_MEMORY.glob("psm_*"))

    stack = Stack.start(home, "tiny-llama", own)
    try:
        key = stack.key
        assert (home / "demo-key").stat().st_mode & 0o777 == 0o600
        assert complete(stack).status_code == 200

        # Triton dies, and its model can't be loaded for a while: the keeper tries again until it can.
        weights = own / model.checkpoint / "model.safetensors"
        weights.rename(own / "away")
        triton = next(process for process in processes(home) if process.name() == "tritonserver")
        triton.kill()
        keeper_log = home / "log" / "keeper.log"
        eventually(lambda: "model_load_failed" in keeper_log.read_text(), 200)
        assert "triton was killed by SIGKILL; starting it again" in stack.output()
        assert complete(stack).status_code == 503
        (own / "away").rename(weights)
        eventually(lambda: complete(stack).status_code == 200, 200)

        # The supervisor is killed outright: everything goes with it.
        everything = processes(home)
        assert len(everything) > 6
        stack.process.kill()
        stack.process.wait()
        assert psutil.wait_procs(everything, timeout=10)[1] == []
        eventually(lambda: processes(home) == [], 5)
    finally:
        stack.stop()
    abandoned = regions(home)

    # The next start clears away what that left, keeps the key, and stops as cleanly while an engine loads.
    stack = Stack.launch(home, "tiny-llama", own)
    try:
        eventually(lambda: "loading tiny-llama" in stack.output(), 60)
        eventually(lambda: any("_engine" in " ".join(process.cmdline()) for process in processes(home)), 60)
        assert stack.key == key
        assert not abandoned & regions(home)
        ends_cleanly(stack, signal.SIGTERM, others)
    finally:
        stack.stop()

    # Ctrl-C ends one that is ready and at work.
    stack = Stack.start(home, "tiny-llama", own)
    try:
        body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        headers = {"Authorization": f"Bearer {stack.key}"}
        with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, headers=headers, timeout=60) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
            ends_cleanly(stack, signal.SIGINT, others)
    finally:
        stack.stop()
