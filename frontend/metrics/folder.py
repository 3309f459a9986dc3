"""The folder where the processes of one frontend count: a few files of each process, added up when somebody asks.

Counters must not go down when a process ends, and the files of those that ended must not pile up. So the counts of a
dead process are added to those of the departed, while nobody reads. Imports nothing that counts: gunicorn's master is
where this runs, and it counts nothing itself.
"""
from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from prometheus_client import values
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

#: Where the library looks for the folder.
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
#: Bytes that each file has from the start. Series are few, so it seldom grows.
FILE_SIZE = 2**20
#: Seconds to wait for the workers of a frontend that was just killed to be gone.
PATIENCE = 3.0
_ADDED_UP = ("counter", "histogram")
_OF_THE_LIVING = ("gauge_livesum",)


class FolderInUse(Exception):
    """Another frontend counts there."""


class Folder(Collector):
    """A folder that one process owns, and that it and the children that it forks count in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner: TextIO | None = None

    def own(self) -> None:
        """Take the folder until this process and its children end, and empty it. Raises FolderInUse, or OSError."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._owner = (self._path / "owner.lock").open("w")
        deadline = time.monotonic() + PATIENCE
        while not _locks(self._owner):
            if time.monotonic() > deadline:
                raise FolderInUse(
                    f"another frontend counts in {self._path}: give this one a STRATA_HOME of its own")
            time.sleep(0.05)
        for file in self._path.glob("*.db"):
            file.unlink()
        for kind in _ADDED_UP:
            _reserve(self._file(kind, "departed"))

    def join(self) -> None:
        """Let this process count here, before anything that counts is imported. Raises OSError; it then counts nowhere.

        The files get all their room at once: a write to a mapped file whose disk is full would kill the process.
        """
        with self._lock(fcntl.LOCK_EX):
            for kind in (*_ADDED_UP, *_OF_THE_LIVING):
                _reserve(self._file(kind, os.getpid()))
        os.environ[VARIABLE] = str(self._path)
        values.ValueClass = values.MultiProcessValue()  # what the variable would have done at the library's import

    def bury(self, pid: int) -> None:
        """Add a dead process's counts to those of the departed and remove its files. Raises OSError."""
        with self._lock(fcntl.LOCK_EX):
            for kind in _ADDED_UP:
                file = self._file(kind, pid)
                if file.exists():
                    _add(file, self._file(kind, "departed"))
            for kind in (*_ADDED_UP, *_OF_THE_LIVING):
                self._file(kind, pid).unlink(missing_ok=True)

    def collect(self) -> Iterable[Metric]:
        """The sums over all processes, dead and alive."""
        with self._lock(fcntl.LOCK_SH):
            merged: Iterable[Metric] = MultiProcessCollector.merge([str(file) for file in self._path.glob("*.db")])
            return merged

    def _file(self, kind: str, whose: int | str) -> Path:
        """The library's own names."""
        return self._path / f"{kind}_{whose}.db"

    @contextmanager
    def _lock(self, mode: int) -> Iterator[None]:
        """Opened anew each time, since threads and forked processes would share a lock."""
        with (self._path / "sum.lock").open("a") as lock:
            fcntl.flock(lock, mode)
            yield


def _locks(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _reserve(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, FILE_SIZE)
    finally:
        os.close(descriptor)


def _add(file: Path, to: Path) -> None:
    sums = MmapedDict(str(to))
    try:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):
            sums.write_value(key, sums.read_value(key)[0] + value, 0.0)
    finally:
        sums.close()
