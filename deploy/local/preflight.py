"""Looks for what would make a start fail later and obscurely, and says each thing in one line.

Runs before the virtual environment exists (`python3.11 -m deploy.local.preflight`), so it needs Python alone.
"""
from __future__ import annotations

import ctypes.util
import errno
import os
import platform
import shutil
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deploy.local import lock
from deploy.local.settings import Settings, SettingsError

GIB = 1024**3
#: Memory of everything but the engines, and of one engine: vLLM in three processes and 1 GiB of KV cache.
BASE_MEMORY, ENGINE_MEMORY = 1 * GIB, 4 * GIB
#: What Triton and vLLM exchange tensors through. Containers have 64 MiB unless told otherwise, which is just enough.
SHARED_MEMORY, SHARED_MEMORY_NEEDED = Path("/dev/shm"), 48 * 1024**2
#: Room in STRATA_HOME for the converted checkpoints (0.3 GiB), caches and logs.
HOME_DISK = 1 * GIB
#: The longest path that a Unix socket can have on Linux (sockaddr_un.sun_path without its closing zero).
LONGEST_SOCKET_PATH = 107
#: Seconds for which a busy port is asked again: a run that was just killed may still be letting go of it.
PORT_PATIENCE = 3.0


def problems(settings: Settings) -> Iterator[str]:
    """Everything that stands in the way of serving with these settings, one line each."""
    yield from _machine()
    yield from _given_in_vain(settings)
    unusable = list(_home(settings))
    yield from unusable
    if not unusable:
        try:
            lock.acquire(settings.home).close()
        except lock.Held as error:
            yield str(error)
            return  # what it holds, the ports and the memory, is explained by that
    yield from _ports(settings)
    yield from _memory(settings)


def libpython_folder() -> Path | None:
    """The folder of this Python's shared library, which Triton's stub loads; None when only the system's linker
    knows it. Raises FileNotFoundError when there is none."""
    folder, name = sysconfig.get_config_var("LIBDIR"), "libpython3.11.so.1.0"
    if folder and (Path(folder) / name).exists():
        return Path(folder)
    if ctypes.util.find_library("python3.11"):
        return None
    raise FileNotFoundError(name)


def _machine() -> Iterator[str]:
    if sys.version_info[:2] != (3, 11):
        yield f"needs Python 3.11, and this is {platform.python_version()}: set PYTHON to a 3.11"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        yield f"needs Linux on x86_64 for Triton's binaries, and this is {platform.system()} {platform.machine()}"
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 35):
        yield f"needs glibc 2.35 or newer for Triton's binaries, and this is {library or 'another libc'} {version}"
    try:
        libpython_folder()
    except FileNotFoundError as error:
        yield f"{error} is missing, which Triton's Python stub loads: apt-get install libpython3.11"
    if not shutil.which("cc") and not shutil.which("gcc"):
        yield "there is no C compiler, which vLLM's imports look for: apt-get install gcc"


def _home(settings: Settings) -> Iterator[str]:
    home = settings.home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        yield f"cannot write to STRATA_HOME, {home} ({error.strerror}): set it to a folder of yours"
        return
    length = len(os.fsencode(settings.valkey_socket))
    if length > LONGEST_SOCKET_PATH:
        yield (
            f"STRATA_HOME is too long: its socket would have a path of {length} bytes, and Linux allows"
            f" {LONGEST_SOCKET_PATH}: set it to a shorter one"
        )
    free = shutil.disk_usage(home).free
    if free < HOME_DISK:
        yield f"needs {_gib(HOME_DISK)} of disk for {home}, and {_gib(free)} is free: make room or set STRATA_HOME"


def _given_in_vain(settings: Settings) -> Iterator[str]:
    """Addresses of parts that run elsewhere: ours are started all the same, and would be used without a word."""
    ours = settings.environment()
    for name in ("STRATA_DATABASE_URL", "STRATA_REDIS_URL", "STRATA_TRITON_URLS", "STRATA_METRICS_ADDRESS"):
        if os.environ.get(name) not in (None, ours[name]):
            yield (f"{name} is for parts that run elsewhere, and `make serve` starts its own: unset it, or start the "
                   'parts as docs/run-your-own.md says under "On several machines"')


def _ports(settings: Settings) -> Iterator[str]:
    named = {
        "STRATA_PORT": settings.port,
        "STRATA_TRITON_GRPC_PORT": settings.grpc_port,
        "STRATA_TRITON_METRICS_PORT": settings.metrics_port,
        "STRATA_METRICS_PORT": settings.frontend_metrics_port,
    }
    for port in dict.fromkeys(named.values()):
        names = [name for name, chosen in named.items() if chosen == port]
        if len(names) > 1:
            yield f"{' and '.join(names)} are the same port, {port}: give each its own"
        elif error := _bind_error(port):
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            yield f"port {port} {reason}: stop what listens there or set {names[0]} to another port"


def _bind_error(port: int) -> OSError | None:
    deadline = time.monotonic() + PORT_PATIENCE
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return None
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    return error
        time.sleep(0.1)


def _memory(settings: Settings) -> Iterator[str]:
    needed = BASE_MEMORY + ENGINE_MEMORY * len(settings.models)
    available = available_memory()
    if available < needed:
        yield (
            f"needs {_gib(needed)} of memory to serve {', '.join(m.id for m in settings.models)}, and"
            f" {_gib(available)} is available: free some or name fewer models in STRATA_MODELS"
        )
    if shutil.disk_usage(SHARED_MEMORY).free < SHARED_MEMORY_NEEDED:
        yield f"{SHARED_MEMORY} has less than 48 MiB free: remove what lies there, or give the container a --shm-size"


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can still be taken: the kernel's MemAvailable, or less where a control group (a container) ends it."""
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    available = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    group = root / "sys/fs/cgroup"
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no control group of our own, or "max": no limit
        return available
    counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    page_cache = int(counts["active_file"]) + int(counts["inactive_file"])  # given back when memory is short
    return min(available, limit - used + page_cache)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def main() -> int:
    """Print what stands in the way. Returns the exit status: 1 when there is anything."""
    try:
        found = list(problems(Settings.read(os.environ)))
    except SettingsError as error:
        found = [str(error)]
    for problem in found:
        print(f"strata: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
