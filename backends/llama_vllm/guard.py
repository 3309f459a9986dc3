"""Leaves nothing behind: a guardian that outlives this process and kills its process group.

vLLM's EngineCore and workers are children of Triton's stub. If the stub or Triton is killed, nobody tells them, and
they keep their memory. The guardian is a small process in a session of its own that waits for either death.

Python's resource trackers, in the same group, are spared at first: they remove the shared memory and semaphores that
the killed ones leave in /dev/shm, and end as soon as the last of these is gone.

`start()` runs in the stub. Run as a script this file is the guardian: guard.py PROCESS_GROUP PARENT
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Longest that the trackers may take to clean up.
TRACKERS_SECONDS = 5.0


def start() -> None:
    """Makes this process the leader of a group, and starts its guardian. Call it before any child is started."""
    os.setpgid(0, 0)
    subprocess.Popen(
        [_python(), "-S", "-E", os.path.abspath(__file__), str(os.getpid()), str(os.getppid())],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        close_fds=True,
    )


def _python() -> str:
    """The interpreter to run. Inside the stub, which embeds Python, sys.executable can be anything."""
    return sys.executable or f"python{sys.version_info.major}.{sys.version_info.minor}"


def watch(group: int, parent: int) -> None:
    """Returns when the leader of the group or its parent has died, after killing what is left of the group."""
    waits = select.poll()
    for pid in (group, parent):
        try:
            waits.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            break
    else:
        waits.poll()
    deadline = time.monotonic() + TRACKERS_SECONDS
    while (members := list(_members(group))) and time.monotonic() < deadline:
        for pid in members:
            with suppress(OSError):
                if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _members(group: int) -> Iterator[int]:
    """The processes of a group that have not ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The command's name, in parentheses, may hold spaces: the fields count from behind it.
                state, _, its_group, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(its_group) == group and state != "Z":
                    yield int(entry.name)


if __name__ == "__main__":
    # Whoever stops the server stops the leader too; the guardian must see that through.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(int(sys.argv[1]), int(sys.argv[2]))
