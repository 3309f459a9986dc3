"""The folder where processes count: sums that never go down, and no files of the dead."""
from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from frontend.metrics.folder import FILE_SIZE, Folder, FolderInUse
from tests.stack import REPOSITORY

#: A process that joins the folder, does what it is told on stdin, and says when it has.
COUNTER = """
import sys
from pathlib import Path
from frontend.metrics.folder import Folder
Folder(Path(sys.argv[1])).join()
from frontend.metrics import events
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
COUNT = "events.request_began(); events.request_ended('GET', '/r', 'm', 200, 'ok', 0.03)"


class Process:
    """One that counts."""

    def __init__(self, folder: Path, *prefix: str) -> None:
        command = [*prefix, sys.executable, "-c", COUNTER, str(folder)]
        self.running = subprocess.Popen(command, cwd=REPOSITORY, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def does(self, what: str) -> None:
        assert self.running.stdin
        assert self.running.stdout
        self.running.stdin.write(what + "\n")
        self.running.stdin.flush()
        assert self.running.stdout.readline() == "done\n"

    def kill(self) -> int:
        self.running.kill()
        self.running.communicate()
        return self.running.pid


def owned(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "metrics")
    folder.own()
    return folder


def total(folder: Folder, name: str, **labels: str) -> float:
    return sum(sample.value for metric in folder.collect() for sample in metric.samples
               if sample.name == name and labels.items() <= sample.labels.items())


def test_counts_of_several_processes_are_added_up(tmp_path: Path) -> None:
    folder = owned(tmp_path)
    processes = [Process(tmp_path / "metrics") for _ in range(3)]
    for number, process in enumerate(processes, start=1):
        for _ in range(number):
            process.does(COUNT)
    assert total(folder, "strata_requests_total", route="/r", status="200") == 6
    assert total(folder, "strata_request_seconds_count") == 6
    assert total(folder, "strata_request_seconds_bucket", le="0.025") == 0
    assert total(folder, "strata_request_seconds_bucket", le="0.05") == 6
    assert total(folder, "strata_request_seconds_sum") == pytest.approx(0.18)
    for process in processes:
        process.kill()


def test_what_a_dead_process_counted_stays_and_its_files_go(tmp_path: Path) -> None:
    folder = owned(tmp_path)
    living = Process(tmp_path / "metrics")
    living.does(COUNT)
    for number in range(2, 5):
        dying = Process(tmp_path / "metrics")
        dying.does(COUNT)
        dying.does("events.request_began()")  # which it will never end
        assert total(folder, "strata_requests_active") == 1
        dead = dying.kill()
        folder.bury(dead)
        assert list((tmp_path / "metrics").glob(f"*_{dead}.db")) == []
        assert total(folder, "strata_requests_total") == number
        assert total(folder, "strata_request_seconds_bucket", le="0.05") == number
        assert total(folder, "strata_requests_active") == 0
    assert len(list((tmp_path / "metrics").glob("*.db"))) == 3 + 2
    folder.bury(living.kill())
    folder.bury(999_999_999)
    assert total(folder, "strata_requests_total") == 4


def test_nobody_sees_a_burial_half_done(tmp_path: Path) -> None:
    folder = owned(tmp_path)
    processes = [Process(tmp_path / "metrics") for _ in range(6)]
    for process in processes:
        process.does(COUNT)
    done = threading.Event()

    def read() -> set[float]:
        seen = set()
        while not done.is_set():
            seen.add(total(folder, "strata_requests_total"))
        return seen

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for process in processes:
            folder.bury(process.kill())
        done.set()
    assert [reader.result() for reader in readers] == [{6}, {6}]


def test_a_folder_has_one_owner_and_starts_empty(tmp_path: Path) -> None:
    first = owned(tmp_path)
    process = Process(tmp_path / "metrics")
    process.does(COUNT)
    process.kill()
    with pytest.raises(FolderInUse, match="STRATA_HOME"):
        owned(tmp_path)
    assert total(first, "strata_requests_total") == 1
    del first  # and with it the lock, as when its process ends
    assert total(owned(tmp_path), "strata_requests_total") == 0


def test_files_have_all_their_room_from_the_start(tmp_path: Path) -> None:
    folder = owned(tmp_path)
    process = Process(tmp_path / "metrics")
    process.does(COUNT)
    for file in (tmp_path / "metrics").glob("*.db"):
        assert file.stat().st_blocks * 512 >= FILE_SIZE
        assert file.stat().st_mode & 0o077 == 0
    process.kill()
    assert total(folder, "strata_requests_total") == 1


def test_without_room_a_process_says_so_and_counts_nowhere(tmp_path: Path) -> None:
    owned(tmp_path)
    process = Process(tmp_path / "metrics", "prlimit", f"--fsize={FILE_SIZE // 2}")
    _, said = process.running.communicate(COUNT)
    assert "OSError" in said
    assert "File too large" in said
