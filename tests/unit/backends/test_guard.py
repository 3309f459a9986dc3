"""The guardian, with real processes: whoever dies, nothing of the group is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from backends.llama_vllm.guard import awaits, members, watch

ROOT = Path(__file__).parents[3]

#: Like Triton: starts a stub and waits.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"

#: Like the stub: guards itself, makes shared memory and a folder of slabs, starts a child in its group, says so, waits.
STUB = """
import os, subprocess, sys, time
from multiprocessing import shared_memory
from backends.llama_vllm import guard
from backends.llama_vllm.slab_folder import SlabFolder
guard.start()
memory = shared_memory.SharedMemory(create=True, size=4096)
folder = SlabFolder()
(folder.path / "slab").write_bytes(b"x")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), memory.name, folder.path.name, flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def memory_exists(name: str) -> bool:
    return (Path("/dev/shm") / name).exists()


@pytest.fixture
def server() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", PARENT, STUB], env=environment, stdout=subprocess.PIPE, text=True)


def started(server: subprocess.Popen[str]) -> tuple[int, list[str]]:
    assert server.stdout is not None
    pid, *memory = server.stdout.readline().split()
    assert all(map(memory_exists, memory))
    assert len(dict(members(int(pid)))) >= 2
    return int(pid), memory


def guardians(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(group) in command and any(part.endswith("guard.py") for part in command):
            found.append(process.pid)
    return found


def test_killing_the_stub_leaves_nothing(server: subprocess.Popen[str]) -> None:
    stub, memory = started(server)
    assert until(lambda: len(guardians(stub)) == 1)
    os.kill(stub, signal.SIGKILL)
    assert until(lambda: not dict(members(stub)))
    assert until(lambda: not any(map(memory_exists, memory)))
    assert until(lambda: not guardians(stub))
    server.wait(10)


def test_killing_the_server_leaves_nothing(server: subprocess.Popen[str]) -> None:
    stub, memory = started(server)
    assert until(lambda: len(guardians(stub)) == 1)
    server.kill()
    server.wait(10)
    assert until(lambda: not dict(members(stub)))
    assert until(lambda: not any(map(memory_exists, memory)))
    assert until(lambda: not guardians(stub))


def test_an_interrupt_does_not_stop_the_guardian(server: subprocess.Popen[str]) -> None:
    stub, _ = started(server)
    assert until(lambda: len(guardians(stub)) == 1)
    (guardian,) = guardians(stub)
    time.sleep(0.5)
    os.kill(guardian, signal.SIGTERM)
    os.kill(guardian, signal.SIGINT)
    time.sleep(0.2)
    assert len(guardians(stub)) == 1
    os.kill(stub, signal.SIGKILL)
    assert until(lambda: not guardians(stub))
    server.wait(10)


def test_a_stub_that_triton_only_waits_for_is_ended() -> None:
    """As after a load that Triton gave up while the stub was starved of its core."""
    stub = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", PARENT, stub], stdout=subprocess.PIPE, text=True) as triton:
        assert triton.stdout is not None
        group = int(triton.stdout.readline())
        assert until(lambda: awaits(triton.pid, group))
        assert not awaits(os.getpid(), group)
        began = time.monotonic()
        watch(group, triton.pid, look=0.1, hanging=1.0)
        assert time.monotonic() - began >= 1.0
        assert triton.wait(10) == 0
        assert not dict(members(group))
