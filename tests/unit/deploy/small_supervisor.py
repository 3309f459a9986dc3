"""A supervisor over small real processes, run as a program by the tests: `… LOGS PROGRAM…`, one part for each PROGRAM.

A program is Python code. It is ready when its log says `ready`.
"""
from __future__ import annotations

import asyncio
import functools
import sys
from pathlib import Path

from deploy.local.supervisor import Part, StartError, Stopped, Supervisor


async def _supervise(logs: Path, programs: list[str]) -> None:
    async def is_ready(name: str) -> bool:
        return "ready" in (logs / f"{name}.log").read_text()

    async with Supervisor(logs, functools.partial(print, flush=True)) as supervisor:
        for number, program in enumerate(programs):
            name = f"part{number}"
            part = Part(name, (sys.executable, "-c", program), functools.partial(is_ready, name), stop_timeout=1.0)
            await supervisor.start(part)
        print("all ready", flush=True)
        await supervisor.wait()


if __name__ == "__main__":
    try:
        asyncio.run(_supervise(Path(sys.argv[1]), sys.argv[2:]))
    except Stopped:
        sys.exit("stopped while starting")
    except StartError as error:
        sys.exit(str(error))
