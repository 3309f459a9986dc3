"""When an engine's process is killed, its children go with it and their shared memory is given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: As Triton's stub does: a group of its own with a guardian, and a child with shared memory, made the way vLLM does.
STUB = """
import multiprocessing, os, time
from multiprocessing import shared_memory
from backends.llama_vllm import guard

def work(names):
    names.put((os.getpid(), shared_memory.SharedMemory(create=True, size=4096).name))
    time.sleep(600)

if __name__ == "__main__":
    guard.start()
    context = multiprocessing.get_context("spawn")
    names = context.Queue()
    context.Process(target=work, args=(names,)).start()
    print(os.getpid(), *names.get(), flush=True)
    time.sleep(600)
"""
#: As Triton does: the parent of the stub, which passes its output on.
SERVER = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("killed", ["stub", "server"])
def test_what_a_kill_leaves_is_cleared_away(tmp_path: Path, killed: str) -> None:
    program = tmp_path / "stub.py"
    program.write_text(STUB)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(program)], stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        stub, child, region = server.stdout.readline().split()
        assert Path("/dev/shm", region).exists()
        os.kill({"stub": int(stub), "server": server.pid}[killed], signal.SIGKILL)
        eventually(lambda: gone(int(stub)) and gone(int(child)))
        eventually(lambda: not Path("/dev/shm", region).exists())
