"""A folder of slabs is there for exactly as long as its owner lives."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from backends.llama_vllm.slab_folder import SlabFolder, sweep

ROOT = Path(__file__).parents[3]

#: Makes a folder with a slab in it, says its name, starts a child that outlives it for a while, and waits.
OWNER = """
import subprocess, sys, time
from pathlib import Path
from backends.llama_vllm.slab_folder import SlabFolder
folder = SlabFolder(Path(sys.argv[1]))
(folder.path / "slab").write_bytes(b"x")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(5)"], stdout=subprocess.DEVNULL)
print(folder.path, flush=True)
time.sleep(600)
"""


def owner(root: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_start_removes_what_the_killed_left_and_spares_the_living(tmp_path: Path) -> None:
    (killed, left), (living, kept) = owner(tmp_path), owner(tmp_path)
    (tmp_path / "somebody else's").mkdir()
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    folder = SlabFolder(tmp_path)
    assert not left.exists()
    assert (kept / "slab").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"somebody else's", kept.name, folder.path.name}
    living.kill()
    living.wait(10)
    sweep(tmp_path)
    assert not kept.exists()
    assert folder.path.exists()
    folder.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["somebody else's"]


def test_the_capacity_is_that_of_the_file_system(tmp_path: Path) -> None:
    folder = SlabFolder(tmp_path)
    assert folder.capacity() > 2**20
    folder.remove()
