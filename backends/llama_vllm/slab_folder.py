"""The folder of one engine's slabs in shared memory, which never outlives the engine.

The engine's process holds a lock on its folder for as long as it lives, however it ends. Whoever can take the lock of
a folder knows that its owner is gone, also from another container that shares the memory, and removes it: every start
does, and so does the guardian after it has ended an engine's processes.

Needs Python alone: the guardian runs this without any package.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path("/dev/shm")
PREFIX = "strata-slabs-"


class SlabFolder:
    """A new folder, locked."""

    def __init__(self, root: Path | None = None) -> None:
        """Removes what others left behind first. Raises OSError if there is no room."""
        root = root or ROOT
        sweep(root)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            lock = _locked(self.path, wait=True)
            if lock is not None:
                self._lock = lock
                return

    def capacity(self) -> int:
        """Bytes that the file system has in all."""
        room = os.statvfs(self.path)
        return room.f_blocks * room.f_frsize

    def remove(self) -> None:
        """Ends the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(root: Path | None = None) -> None:
    """Removes the folders whose owner is gone."""
    for folder in (root or ROOT).glob(f"{PREFIX}*"):
        lock = _locked(folder, wait=False)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path, wait: bool) -> int | None:
    """An open file that holds the folder's lock; None if somebody else holds it, or removed the folder meanwhile."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.path.samestat(os.fstat(lock), os.stat(folder)):
            return lock
    os.close(lock)
    return None
