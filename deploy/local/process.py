"""One child process: started so that it cannot outlive us, stopped in order, its output in a file."""
from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# prctl(2), from <sys/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that forked it ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none can get away."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Child:
    """A running command. It leads a session of its own, so that a Ctrl-C reaches us alone and we stop it in order.

    Make it in the main thread, for the sake of `die_with_parent`, with an event loop running.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        parent = os.getpid()

        def in_child() -> None:
            die_with_parent()
            if os.getppid() != parent:  # it died before the kernel was asked
                os._exit(1)

        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=in_child,
            )
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    @property
    def pid(self) -> int:
        """Its process id, which is also its group's."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, −n when signal n killed it, None while it runs."""
        return self._process.returncode

    @property
    def end(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return "runs"
        return f"was killed by {signal.Signals(-self.status).name}" if self.status < 0 else f"ended with {self.status}"

    async def wait(self) -> None:
        """Wait until it ends."""
        await self._ended.wait()

    async def stop(self, timeout: float) -> bool:
        """SIGTERM, and after `timeout` seconds SIGKILL to all of its group. Returns whether it went by itself."""
        if self.status is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), timeout)
        went = self.status is not None
        self.kill()
        await self.wait()
        return went

    def kill(self) -> None:
        """SIGKILL to it and to what is left of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _on_end(self) -> None:
        self._process.wait()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()


def children() -> Iterator[int]:
    """The ids of our own children, adopted ones and those that ended unnoticed included."""
    us = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The command's name, in parentheses, may hold spaces: the fields count from behind it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == us:
                    yield int(entry.name)


def tail(log: Path, lines: int = 12, width: int = 200) -> list[str]:
    """The last lines of a log that say something, no longer than `width` characters."""
    with contextlib.suppress(OSError):
        return [line[:width] for line in log.read_text(errors="replace").splitlines() if line.strip()][-lines:]
    return []
