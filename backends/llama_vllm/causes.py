"""Carries out of an engine's processes why they did not start, which vLLM only logs there.

To whoever starts it, vLLM says "Engine core initialization failed. See root cause above." The cause is in a log line of
the core (`vllm/v1/engine/core.py`, run_engine_core) or of a worker (`vllm/v1/executor/multiproc_executor.py`,
worker_main). So these lines go into a file as well, whose name the processes inherit.
"""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

#: Names the file, to all processes of one engine.
VARIABLE = "STRATA_ENGINE_CAUSES"
#: Where vLLM logs what is meant, and how those lines end.
LOGGERS = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor")
SIGN = "failed to start."


def prepare() -> None:
    """Makes the file. Call it before any process of the engine is started."""
    file, os.environ[VARIABLE] = tempfile.mkstemp(prefix="strata-causes-")
    os.close(file)
    atexit.register(Path(os.environ[VARIABLE]).unlink, missing_ok=True)


def watch() -> None:
    """Writes down why this process does not start. Called by what every one of them imports."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(present, _Writer) for present in logger.filters):
            logger.addFilter(_Writer())


def forget() -> None:
    """Before the engine is started: what is in the file is of an attempt before."""
    with suppress(KeyError, OSError):
        os.truncate(os.environ[VARIABLE], 0)


def first() -> str | None:
    """What went wrong first, as one line, if any process said so: what others say comes of it."""
    try:
        return Path(os.environ[VARIABLE]).read_text(errors="replace").partition("\n")[0] or None
    except (KeyError, OSError):
        return None


class _Writer(logging.Filter):
    """A filter, since vLLM takes every handler away when it sets up its logging in a new process."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Takes the lines that are meant, and lets all pass."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.getMessage().endswith(SIGN):
            line = " ".join(f"{type(error).__name__}: {error}".split())
            with suppress(KeyError, OSError):
                file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND)  # not made anew: nobody would remove it
                os.write(file, line.encode(errors="replace") + b"\n")
                os.close(file)
        return True
