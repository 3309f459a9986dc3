"""One launcher for a STRATA_HOME: a second one would share its database, its sockets and its logs."""
from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TextIO


class Held(Exception):
    """Another process has the folder. The message is one line."""


def acquire(home: Path) -> TextIO:
    """Take the folder until the file that is returned is closed or this process ends, however it ends."""
    lock = (home / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise Held(f"Strata already runs from {home} (process {holder}): stop it or set STRATA_HOME") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
