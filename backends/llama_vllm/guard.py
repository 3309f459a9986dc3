"""Leaves nothing behind: a guardian that outlives this process and kills its process group.

vLLM's EngineCore and workers are children of Triton's stub. If the stub or Triton is killed, nobody tells them, and
they keep their memory. The guardian is a small process in a session of its own that waits for either death.

It also ends what Triton only waits for: on a machine so busy that a stub does not show for a second that it lives,
Triton gives up the load and then waits, without telling it, for the stub's end. Neither would ever move again.

Python's resource trackers, in the same group, are spared at first: they remove the shared memory and semaphores that
the killed ones leave in /dev/shm, and end as soon as the last of these is gone. The folder of slabs, which no tracker
knows, the guardian removes itself.

`start()` runs in the stub. Run as a script this file is the guardian: guard.py PROCESS_GROUP PARENT
"""

from __future__ import annotations

import glob
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: How long Python's resource tracker may take to unlink the shared memory of processes that were killed.
TRACKER_SECONDS = 5.0
#: Seconds between two looks at what Triton does, and for which it may wait for a stub's end: an engine that is unloaded
#: takes some ten.
LOOK_SECONDS, HANGING_SECONDS = 10.0, 120.0
#: The number of the system call that waits for a child, by machine.
_WAIT = {"x86_64": 61, "aarch64": 260}.get(os.uname().machine)


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


def watch(group: int, parent: int, look: float = LOOK_SECONDS, hanging: float = HANGING_SECONDS) -> None:
    """Returns when the leader of the group or its parent has died, after ending what is left of the group.

    So it does when the parent has been doing nothing but wait for the leader's end for `hanging` seconds.
    """
    waits = select.poll()
    for pid in (group, parent):
        try:
            waits.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            break
    else:
        since = time.monotonic()
        while not waits.poll(look * 1000):
            if not awaits(parent, group):
                since = time.monotonic()
            elif time.monotonic() - since >= hanging:
                print(f"strata: Triton has given up process {group} and waits for its end, so it is ended", flush=True)
                break
    end(group)


def awaits(parent: int, child: int) -> bool:
    """Whether a thread of a process waits for its child's end. False where the system does not let us see that."""
    for thread in glob.glob(f"/proc/{parent}/task/*/syscall"):
        with suppress(OSError):
            number, *arguments = Path(thread).read_text().split()
            if number == str(_WAIT) and int(arguments[0], 16) == child:
                return True
    return False


def end(group: int) -> None:
    """Kills a process group; the resource tracker in it last, once it has cleaned up after the others."""
    give_up = time.monotonic() + TRACKER_SECONDS
    while (left := dict(members(group))) and time.monotonic() < give_up:
        for pid, command in left.items():
            if b"resource_tracker" not in command:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    if left:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def members(group: int) -> Iterator[tuple[int, bytes]]:
    """The living processes of a group with their command lines."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(ProcessLookupError, FileNotFoundError):
            if os.getpgid(int(entry)) != group:
                continue
            with open(f"/proc/{entry}/cmdline", "rb") as command:
                # A zombie has none.
                if line := command.read():
                    yield int(entry), line


if __name__ == "__main__":
    # Whoever stops the server stops the leader too; the guardian must see that through.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.path[0] = str(Path(__file__).parents[2])
    from backends.llama_vllm import slab_folder

    watch(int(sys.argv[1]), int(sys.argv[2]))
    slab_folder.sweep()
