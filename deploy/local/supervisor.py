"""Keeps a row of processes running: starts them in order, restarts what dies, stops them in reverse, leaves none."""
from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.process import Child, adopt_orphans, children

Say = Callable[[str], None]

#: Seconds until a part that died is started again: twice as long each time, from the first to the last.
FIRST_DELAY, LAST_DELAY = 1.0, 30.0
#: A part that ran for this many seconds starts over at the first delay.
STEADY = 60.0
#: Seconds between two looks whether a part is ready, and between two looks for orphans.
LOOK, SWEEP = 0.2, 5.0
#: Seconds that orphans get to end by themselves.
GRACE = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Part:
    """One long-running process and how to tell that it works. `ready` must not raise."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[], Awaitable[bool]]
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Called before each start, to clear away what an earlier run left.
    prepare: Callable[[], object] = lambda: None
    start_timeout: float = 60.0
    stop_timeout: float = 10.0


class StartError(Exception):
    """Something did not come up. The message is one line; `log` has the rest."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


class Stopped(Exception):
    """A signal asked us to stop."""


class Supervisor:
    """Runs parts, and steps between them, until a signal ends them all. Use it as an async context manager.

    SIGINT, SIGTERM and SIGHUP stop everything in reverse order; a second one kills everything at once. Leaving the
    context stops everything too. Each part writes to `<logs>/<name>.log`; the log of the run before is `.log.1`.
    """

    def __init__(self, logs: Path, say: Say) -> None:
        self._logs = logs
        self._say = say
        self._stopping = asyncio.Event()
        self._running: dict[str, tuple[Part, Child]] = {}
        self._steps: set[Child] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Supervisor:
        adopt_orphans()
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        self._tasks.append(asyncio.create_task(self._collect_zombies()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for part, child in reversed([*self._running.values()]):
            if not await child.stop(part.stop_timeout):
                self._say(f"{part.name} had to be killed")
        self._running.clear()
        await self._end_orphans()

    async def step(self, name: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        """Run a command to its end. Raises StartError when it fails, Stopped when a signal came."""
        log = self._new_log(name)
        child = Child(command, environment, log)
        self._steps.add(child)
        try:
            await self._or_stopped(child.wait())
        finally:
            await child.stop(timeout=2.0)
            self._steps.discard(child)
        if child.status:
            raise StartError(f"{name} {child.end}", log)

    async def start(self, part: Part) -> None:
        """Start a part and wait until it is ready; from then on it is restarted when it dies."""
        log = self._new_log(part.name)
        if not await self._start(part):
            raise StartError(f"{part.name} did not come up: it {self._why(part)}", log)
        self._tasks.append(asyncio.create_task(self._keep(part)))

    async def until(self, condition: Callable[[], Awaitable[bool]], timeout: float, every: float = LOOK) -> bool:
        """Wait until a condition holds. Returns whether it did in time. Raises Stopped when a signal came."""
        deadline = time.monotonic() + timeout
        while not await self._or_stopped(condition()):
            if time.monotonic() > deadline:
                return False
            await self._or_stopped(asyncio.sleep(every))
        return True

    async def wait(self) -> None:
        """Wait for the signal to stop."""
        await self._stopping.wait()

    def log(self, name: str) -> Path:
        """The file that a part's or step's output goes to."""
        return self._logs / f"{name}.log"

    def _new_log(self, name: str) -> Path:
        log = self.log(name)
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.1"))
        return log

    async def _start(self, part: Part) -> bool:
        part.prepare()
        child = Child(part.command, part.environment, self.log(part.name))
        self._running[part.name] = (part, child)

        async def ready_or_over() -> bool:
            return child.status is not None or await part.ready()

        return await self.until(ready_or_over, part.start_timeout) and child.status is None

    async def _keep(self, part: Part) -> None:
        delay, since = FIRST_DELAY, time.monotonic()
        while True:
            _, child = self._running[part.name]
            await child.wait()
            await self._end_orphans()
            child.kill()
            if time.monotonic() - since > STEADY:
                delay = FIRST_DELAY
            self._say(f"{part.name} {child.end}; starting it again in {delay:.0f} s ({self.log(part.name)})")
            await asyncio.sleep(delay)
            since, delay = time.monotonic(), min(2 * delay, LAST_DELAY)
            if await self._start(part):
                self._say(f"{part.name} runs again")
            else:
                self._say(f"{part.name} did not come up again: it {self._why(part)}")
                await self._running[part.name][1].stop(part.stop_timeout)

    def _why(self, part: Part) -> str:
        _, child = self._running[part.name]
        return f"is not ready after {part.start_timeout:.0f} s" if child.status is None else child.end

    async def _or_stopped(self, work: Awaitable[object]) -> bool:
        """The truth of what `work` returns. Raises Stopped as soon as a signal comes."""
        task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                raise Stopped
            return bool(task.result())
        finally:
            task.cancel()
            stopping.cancel()

    def _on_signal(self, number: int) -> None:
        if not self._stopping.is_set():
            self._say(f"stopping ({signal.Signals(number).name}; send it again to kill everything at once)")
            self._stopping.set()
            return
        for child in (*(child for _, child in self._running.values()), *self._steps):
            child.kill()

    def _orphans(self) -> set[int]:
        ours = {child.pid for _, child in self._running.values()} | {child.pid for child in self._steps}
        return set(children()) - ours

    async def _end_orphans(self) -> None:
        """End what dead parts left to us, and in turn what that leaves.

        First they get a moment to see for themselves that their parents are gone: Python's trackers of shared memory
        do, and then remove what was leaked.
        """
        deadline = time.monotonic() + GRACE
        while orphans := self._orphans():
            for pid in orphans:
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            await asyncio.sleep(LOOK)

    async def _collect_zombies(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            for pid in self._orphans():
                os.waitpid(pid, os.WNOHANG)
