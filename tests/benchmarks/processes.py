"""What a server's process tree costs: CPU seconds and peak memory, by the part that each process plays."""
from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

#: What a process is, by a word of its command line; the first that fits. Others count to their parent's part.
ROLES = (
    ("VLLM::EngineCore", "engine core"),
    ("VLLM::Worker", "engine worker"),
    ("_engine/", "engine stub"),
    ("_tokenizer/", "tokenizer stub"),
    ("tritonserver", "tritonserver"),
    ("gunicorn", "gunicorn"),
    ("frontend keeper", "keeper"),
    ("valkey-server", "valkey"),
    ("openai.api_server", "api server"),
    ("deploy.local", "supervisor"),
)


def _role(process: psutil.Process, inherited: str) -> str:
    command = " ".join(process.cmdline())
    return next((role for word, role in ROLES if word in command), inherited)


def tree(root: int) -> Iterator[tuple[psutil.Process, str]]:
    """Every live process of a tree with its role, parents first."""
    waiting = [(psutil.Process(root), "other")]
    while waiting:
        process, inherited = waiting.pop()
        with contextlib.suppress(psutil.NoSuchProcess):
            role = _role(process, inherited)
            yield process, role
            waiting += [(child, role) for child in process.children()]


def cpu_seconds(root: int) -> dict[str, float]:
    """CPU seconds so far by role, those of children that have ended (and been waited for) included."""
    seconds: dict[str, float] = defaultdict(float)
    for process, role in tree(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[role] += times.user + times.system + times.children_user + times.children_system
    return dict(seconds)


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds by role between two readings; roles that did nothing are left out."""
    differences = {role: seconds - before.get(role, 0.0) for role, seconds in after.items()}
    return {role: round(seconds, 3) for role, seconds in differences.items() if seconds > 0}


def machine_cpu_seconds() -> float:
    """CPU seconds that all cores together have been busy, what a hypervisor took from us included."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


class PeakMemory:
    """The highest resident memory of each process of a tree while this context lasts, in bytes.

    The kernel's own high-water marks are reset first and read often, so a process that dies is counted up to then. A
    tree that leaves the machine less than `reserve` bytes is killed, and `exceeded` says so: a machine out of memory
    measures nothing. `highest_sum` is the most that all processes held together, memory that they share counted anew
    for each.
    """

    def __init__(self, root: int, reserve: int, every: float = 0.1) -> None:
        self._root, self._reserve, self._every = root, reserve, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self._peaks: dict[tuple[str, int], int] = {}
        self.exceeded = False
        self.highest_sum = 0

    def __enter__(self) -> PeakMemory:
        for process, _ in tree(self._root):
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # proc(5): resets VmHWM
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._look()

    def by_role(self) -> dict[str, int]:
        """The peak of the largest process of each role."""
        peaks: dict[str, int] = {}
        for (role, _), peak in self._peaks.items():
            peaks[role] = max(peak, peaks.get(role, 0))
        return peaks

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._look()
            if self.exceeded:
                for process, _ in list(tree(self._root)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                return

    def _look(self) -> None:
        now = 0
        for process, role in tree(self._root):
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak, resident = (_kibibytes(status, name) * 1024 for name in ("VmHWM", "VmRSS"))
                self._peaks[role, process.pid] = max(peak, self._peaks.get((role, process.pid), 0))
                now += resident
        self.highest_sum = max(now, self.highest_sum)
        self.exceeded = self.exceeded or psutil.virtual_memory().available < self._reserve


def _kibibytes(status: str, name: str) -> int:
    _, _, rest = status.partition(f"{name}:")
    return int(rest.split(maxsplit=1)[0]) if rest else 0
