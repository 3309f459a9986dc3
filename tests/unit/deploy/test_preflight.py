"""What would make a start fail is said beforehand, each thing in one line that says what to do."""
from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import __main__ as launcher
from deploy.local import lock, preflight, triton
from deploy.local.preflight import GIB, available_memory
from deploy.local.settings import NAMES, PREFIX, REPOSITORY, Settings, SettingsError

PORTS = ("STRATA_PORT", "STRATA_TRITON_GRPC_PORT", "STRATA_TRITON_METRICS_PORT", "STRATA_METRICS_PORT")


def settings(home: Path, **environment: str) -> Settings:
    ports = {}
    for name in PORTS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports[name] = str(free.getsockname()[1])
    return Settings.read({"STRATA_HOME": str(home), "STRATA_MODELS": "tiny-llama", **ports, **environment})


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory enough, whatever else runs on this machine: the stack of the other tests alone takes most of some."""
    monkeypatch.setattr(preflight, "available_memory", lambda: 16 * GIB)


def test_nothing_stands_in_the_way_of_this_machine(tmp_path: Path) -> None:
    assert list(preflight.problems(settings(tmp_path))) == []


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", PORTS)
def test_a_port_in_use(
    tmp_path: Path, busy_port: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "PORT_PATIENCE", 0.2)
    (problem,) = preflight.problems(settings(tmp_path, **{name: str(busy_port)}))
    assert problem == f"port {busy_port} is in use: stop what listens there or set {name} to another port"


@pytest.mark.parametrize("name", [
    "STRATA_DATABASE_URL", "STRATA_REDIS_URL", "STRATA_TRITON_URLS", "STRATA_METRICS_ADDRESS"])
def test_the_address_of_a_part_that_runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ours = settings(tmp_path)
    monkeypatch.setenv(name, ours.environment()[name])
    assert list(preflight.problems(ours)) == []
    monkeypatch.setenv(name, "elsewhere:1")
    (problem,) = preflight.problems(ours)
    assert problem.startswith(f"{name} is for parts that run elsewhere, and `make serve` starts its own: unset it")


def test_two_ports_that_are_one(tmp_path: Path) -> None:
    found = list(preflight.problems(settings(tmp_path, STRATA_PORT="18431", STRATA_TRITON_GRPC_PORT="18431")))
    assert found == ["STRATA_PORT and STRATA_TRITON_GRPC_PORT are the same port, 18431: give each its own"]


def test_a_home_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (problem,) = preflight.problems(settings(tmp_path / "file" / "home"))
    assert problem.startswith("cannot write to STRATA_HOME")


def test_a_home_too_long_for_a_socket(tmp_path: Path) -> None:
    (problem,) = preflight.problems(settings(tmp_path / ("x" * 100)))
    assert problem.startswith("STRATA_HOME is too long")


@pytest.mark.parametrize(
    ("owner", "name", "instead", "said"),
    [
        (sys, "version_info", (3, 12, 1), "needs Python 3.11, and this is"),
        (preflight.platform, "machine", lambda: "aarch64", "needs Linux on x86_64 for Triton's binaries, and this is"),
        (preflight.platform, "libc_ver", lambda: ("glibc", "2.31"), "needs glibc 2.35 or newer"),
        (preflight.platform, "libc_ver", lambda: ("", ""), "and this is another libc"),
        (preflight.shutil, "which", lambda name: None, "there is no C compiler"),
    ],
)
def test_a_machine_that_lacks_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, instead: object, said: str
) -> None:
    asked = settings(tmp_path)
    monkeypatch.setattr(owner, name, instead)
    (problem,) = preflight.problems(asked)
    assert said in problem
    assert "\n" not in problem


def test_a_machine_without_pythons_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = settings(tmp_path)
    monkeypatch.setattr(preflight.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(preflight.ctypes.util, "find_library", lambda name: None)
    (problem,) = preflight.problems(asked)
    assert problem.startswith("libpython3.11.so.1.0 is missing")
    assert "apt-get install libpython3.11" in problem
    monkeypatch.setattr(preflight, "problems", lambda settings: iter([problem]))
    assert launcher.main() == 1
    assert capsys.readouterr().err == f"strata: {problem}\n"


def test_a_library_that_triton_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = settings(tmp_path)
    assert list(triton.missing_libraries(asked)) == []
    package = tmp_path / "package"
    (package / "bin").mkdir(parents=True)
    (package / "backends/python").mkdir(parents=True)
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    gone, server = package / "libgone.so", package / "bin/tritonserver"
    plugin = package / "backends/python/libtriton_python.so"
    for command in (["-shared", "-o", gone], ["-o", server, "-Wl,--no-as-needed", gone], ["-shared", "-o", plugin]):
        subprocess.run(["cc", tmp_path / "empty.c", *command], check=True)
    gone.unlink()
    monkeypatch.setattr(triton, "PACKAGE", package)
    (problem,) = triton.missing_libraries(asked)
    assert "libgone.so is missing, which Triton loads: install the package that has it" in problem


def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "ENGINE_MEMORY", 2**60)
    (problem,) = preflight.problems(settings(tmp_path))
    assert "of memory to serve tiny-llama, and" in problem


def test_too_little_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "SHARED_MEMORY_NEEDED", 2**60)
    (problem,) = preflight.problems(settings(tmp_path))
    assert problem.startswith("/dev/shm has less than 48 MiB free")


def test_too_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "HOME_DISK", 2**60)
    (problem,) = preflight.problems(settings(tmp_path))
    assert "of disk for" in problem


def test_a_container_s_limit_counts_and_its_page_cache_does_not(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    assert available_memory(tmp_path) == 16 * GIB
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text(f"{3 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\nactive_file {GIB}\ninactive_file {GIB}\n")
    (group / "memory.max").write_text(f"{8 * GIB}\n")
    assert available_memory(tmp_path) == 7 * GIB
    (group / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) == 16 * GIB


def test_a_second_launcher_of_a_home_says_who_is_there(tmp_path: Path) -> None:
    held = lock.acquire(tmp_path)
    with pytest.raises(lock.Held, match=f"already runs from .* \\(process {os.getpid()}\\)"):
        lock.acquire(tmp_path)
    (problem,) = preflight.problems(settings(tmp_path))
    assert "already runs" in problem
    held.close()
    lock.acquire(tmp_path).close()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"STRATA_MODLES": "tiny-llama"}, "there is no setting STRATA_MODLES: did you mean STRATA_MODELS?"),
        ({"STRATA_GPU": "1"}, "there is no setting STRATA_GPU: docs/run-your-own.md lists them"),
        ({"STRATA_MODELS": "llama-9b"}, "names 'llama-9b', which is not in the catalog: choose from llama-8b"),
        ({"STRATA_MODELS": ","}, "STRATA_MODELS names no model"),
        ({"STRATA_PORT": "http"}, "STRATA_PORT must be a port from 1 to 65535, not 'http'"),
        ({"STRATA_TRITON_GRPC_PORT": "65536"}, "STRATA_TRITON_GRPC_PORT must be a port"),
    ],
)
def test_a_setting_that_can_not_be_used(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.read(environment)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_name_that_is_read_is_known_and_documented() -> None:
    folders = ("frontend", "deploy", "backends", "model_repository", "tests", "docs")
    files = [REPOSITORY / "README.md", REPOSITORY / "Makefile", REPOSITORY / ".ci" / "run",
             *(path for folder in folders for path in (REPOSITORY / folder).rglob("*")
               if path.suffix in (".py", ".md", ".toml", ".html", ".js") and path != Path(__file__))]
    names = {name for file in files for name in re.findall(r"\bSTRATA_[A-Z0-9_]*[A-Z0-9]", file.read_text())}
    names.remove("STRATA_THREDS")  # a test's misspelling
    assert names == {PREFIX + name for name in NAMES}
    documented = set(re.findall(r"\bSTRATA_[A-Z0-9_]*[A-Z0-9]", (REPOSITORY / "docs" / "run-your-own.md").read_text()))
    assert names - documented == {"STRATA_ENGINE_CAUSES", "STRATA_TEST_SCALE"}


def test_the_command_prints_one_line_and_fails(tmp_path: Path, busy_port: int) -> None:
    ours = {**os.environ, "STRATA_HOME": str(tmp_path), "STRATA_PORT": str(busy_port), "STRATA_MODELS": "tiny-llama"}
    for module in ("deploy.local.preflight", "deploy.local"):
        run = subprocess.run(
            [sys.executable, "-m", module], env=ours, cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert run.returncode == 1
        lines = [line for line in run.stderr.splitlines() if "of memory to serve" not in line]
        assert [f"port {busy_port} is in use" in line for line in lines] == [True]


@pytest.mark.parametrize(("name", "text", "said"), [
    ("STRATA_LOG_LEVEL", "loud", "must be one of debug, info, warning, error"),
    ("STRATA_MAX_BODY_MB", "-1", "must be a whole number from 1 to 1024"),
    ("STRATA_WORKERS", "two", "must be a whole number from 1 to 1000"),
])
def test_a_wrong_setting_of_the_frontend_ends_the_start_before_anything_runs(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    ours = {**os.environ, "STRATA_HOME": str(tmp_path / "home"), "STRATA_MODELS": "tiny-llama", name: text}
    run = subprocess.run([sys.executable, "-m", "deploy.local"], env=ours, cwd=REPOSITORY, capture_output=True,
                         text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"strata: {name} {said}\n")
    assert not (tmp_path / "home").exists()
