"""Starts an engine again whose processes died, a few times; where that fails, ends the stub's process.

A model whose engine is gone and can't be started in place would stay READY in Triton's eyes for ever, and nobody would
hear why. A stub that is gone is seen by the keeper, which loads the model anew: a load that fails is reported to all
who wait, and tried again with growing pauses.

Needs Python alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

#: Seconds before each attempt. What made an engine die, such as memory that others held, may pass.
WAITS = (0.0, 1.0, 5.0)
#: The exit status of a stub that has given up.
GAVE_UP = 70


async def revive(start: Callable[[], Awaitable[object]]) -> None:
    """Returns once `start` has worked; otherwise ends this process, and with it the guardian all that it started."""
    for wait in WAITS:
        await asyncio.sleep(wait)
        try:
            log.error("the engine died; starting it again")
            await start()
        except Exception:
            log.exception("the engine did not start")
        else:
            return
    await asyncio.sleep(0)  # who unloads the model has cancelled this, and needs the process
    log.critical("the engine can't be started again: its model is to be loaded anew")
    os._exit(GAVE_UP)
