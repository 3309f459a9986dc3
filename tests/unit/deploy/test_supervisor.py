"""The supervisor restarts what dies and leaves no process, however it or its parts end. With real processes."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

#: Says that it is ready and stays.
STAYS = "import os, time; print('ready', os.getpid(), flush=True); time.sleep(600)"
#: Leaves word, in a file that all parts share, that it was told to stop.
SAYS_GOODBYE = """
import pathlib, signal, sys, time
def stop(*_):
    with open({file!r}, "a") as goodbyes:
        goodbyes.write({name!r})
    sys.exit()
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
#: Starts a process that leaves its session, so that no group leads to it.
HAS_A_RUNAWAY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", child.pid, flush=True)
time.sleep(600)
"""


class Supervised:
    """The program small_supervisor.py, running."""

    def __init__(self, folder: Path, *programs: str) -> None:
        self.logs = folder
        self.out = folder / "out"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.unit.deploy.small_supervisor", str(folder), *programs],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def said(self, text: str) -> bool:
        """Whether it printed a text."""
        return text in self.out.read_text()

    def pids(self, part: int) -> list[int]:
        """The numbers that a part has printed behind `ready`."""
        lines = (self.logs / f"part{part}.log").read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("ready ")]

    def up(self) -> Supervised:
        """Wait until all parts are ready."""
        eventually(lambda: self.said("all ready"))
        return self

    def everything(self) -> list[psutil.Process]:
        """The supervisor and all that it started."""
        us = psutil.Process(self.process.pid)
        return [us, *us.children(recursive=True)]


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def start(*programs: str) -> Supervised:
        started.append(Supervised(tmp_path, *programs))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.kill()
        supervised.process.wait()


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def gone(processes: list[psutil.Process], seconds: float = 5.0) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


def test_what_dies_is_started_again(start: Start) -> None:
    supervised = start(STAYS).up()
    (first,) = supervised.pids(0)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: supervised.said("part0 runs again"))
    assert supervised.said("part0 was killed by SIGKILL; starting it again in 1 s")
    eventually(lambda: len(supervised.pids(0)) == 2)
    assert psutil.pid_exists(supervised.pids(0)[1])


def test_a_part_that_keeps_dying_is_started_ever_more_slowly(start: Start) -> None:
    supervised = start("import time; print('ready', flush=True); time.sleep(0.5)")
    eventually(lambda: supervised.said("part0 ended with 0; starting it again in 4 s"))
    assert supervised.said("again in 1 s")
    assert supervised.said("again in 2 s")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_reverse_order(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    file = str(tmp_path / "goodbyes")
    supervised = start(*(SAYS_GOODBYE.format(file=file, name=name) for name in "abc")).up()
    everything = supervised.everything()
    supervised.process.send_signal(number)
    assert supervised.process.wait(10) == 0
    assert gone(everything)
    assert Path(file).read_text() == "cba"


def test_a_kill_of_the_supervisor_leaves_no_process(start: Start) -> None:
    supervised = start(STAYS, DEAF).up()
    everything = supervised.everything()
    assert len(everything) == 3
    supervised.process.kill()
    supervised.process.wait()
    assert gone(everything)


def test_a_part_that_does_not_listen_is_killed(start: Start) -> None:
    supervised = start(DEAF).up()
    everything = supervised.everything()
    supervised.process.terminate()
    assert supervised.process.wait(10) == 0
    assert gone(everything)
    assert supervised.said("part0 had to be killed")


def test_a_second_signal_kills_at_once(start: Start, tmp_path: Path) -> None:
    supervised = start(*[DEAF] * 5).up()  # five times the second that each is given
    supervised.process.terminate()
    eventually(lambda: supervised.said("stopping"))
    supervised.process.terminate()
    assert supervised.process.wait(3) == 0


def test_what_a_dead_part_leaves_behind_dies_too(start: Start) -> None:
    supervised = start(HAS_A_RUNAWAY).up()
    part = psutil.Process(supervised.process.pid).children()[0]
    runaway = psutil.Process(supervised.pids(0)[0])
    part.kill()
    assert gone([runaway])


def test_stopping_finds_runaways(start: Start) -> None:
    supervised = start(HAS_A_RUNAWAY).up()
    runaway = psutil.Process(supervised.pids(0)[0])
    supervised.process.terminate()
    assert supervised.process.wait(10) == 0
    assert gone([runaway])


def test_a_part_that_ends_while_it_starts_ends_the_start_in_one_line(start: Start) -> None:
    supervised = start(STAYS, "import sys; sys.exit(3)")
    assert supervised.process.wait(15) == 1
    assert supervised.said("part1 did not come up: it ended with 3")
    assert not supervised.said("Traceback")


def test_a_signal_while_a_part_starts_stops_all(start: Start) -> None:
    supervised = start(STAYS, "import time; print('almost', flush=True); time.sleep(600)")
    log = supervised.logs / "part1.log"
    eventually(lambda: log.exists() and "almost" in log.read_text())
    everything = supervised.everything()
    supervised.process.terminate()
    supervised.process.wait(10)
    assert gone(everything)
