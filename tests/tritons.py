"""Starts real Tritons alone, as the launcher would: each in a folder of its own, on a core that a test picks."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
from tritonclient.grpc import service_pb2, service_pb2_grpc

from backends.llama_vllm import slab_folder
from deploy.local import triton as launcher
from deploy.local.process import die_with_parent
from deploy.local.settings import Settings
from tests.stack import free_ports

PATIENCE = 120.0


def lives(process: psutil.Process) -> bool:
    """Whether it runs: a zombie does not."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Triton:
    """A running one, with the tokenizers of its models loaded."""

    def __init__(self, home: Path, models: str, checkpoints: Path, core: int | None = None) -> None:
        grpc_port, metrics_port = free_ports(2)
        self.settings = Settings.read({
            "STRATA_HOME": str(home), "STRATA_MODELS": models, "STRATA_CHECKPOINTS": str(checkpoints),
            "STRATA_TRITON_GRPC_PORT": str(grpc_port), "STRATA_TRITON_METRICS_PORT": str(metrics_port)})
        self.home = home
        self.address = f"127.0.0.1:{grpc_port}"
        home.mkdir(parents=True, exist_ok=True)
        pinned = () if core is None else ("taskset", "-c", str(core))
        self._command = [*pinned, *launcher.command(self.settings, launcher.assemble(self.settings))]
        self._environment = {**os.environ, **launcher.environment(self.settings), "STRATA_HOME": str(home),
                             **({} if core is None else {"OMP_NUM_THREADS": "1"})}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        launcher.sweep_shared_memory(self.settings)
        with (self.home / "triton.out").open("ab") as out:
            self.process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out, preexec_fn=die_with_parent)
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.home / "triton.out").read_text(errors="replace")[-4000:])
            time.sleep(0.2)

    def family(self) -> list[psutil.Process]:
        """Every process that was started for it, orphans as far as they have their environment."""
        found = set()
        with suppress(psutil.Error):
            found.update(psutil.Process(self.process.pid).children(recursive=True))
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("STRATA_HOME") == str(self.home):
                    found.add(process)
        return [process for process in found if lives(process)]

    def orphans(self) -> list[psutil.Process]:
        """Those of its processes that outlive who started them."""
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        return [process for process in self.family() if process not in children and process.pid != self.process.pid]

    def slabs(self) -> set[Path]:
        """The folders in shared memory that its engines hold."""
        found = set()
        for process in self.family():
            with suppress(OSError):
                found.update(file.readlink() for file in Path(f"/proc/{process.pid}/fd").iterdir())
        return {file for file in found if file.parent == slab_folder.ROOT and file.name.startswith(slab_folder.PREFIX)}

    def kill(self) -> None:
        """End it at once, as a machine that dies."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it in order, and clear up."""
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        for process in self.family():
            with suppress(psutil.Error):
                process.kill()
        launcher.sweep_shared_memory(self.settings)
        shutil.rmtree(self.home / "triton", ignore_errors=True)

    def _answers(self) -> bool:
        with grpc.insecure_channel(self.address) as channel:
            try:
                return bool(service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(
                    service_pb2.ServerLiveRequest(), timeout=1).live)
            except grpc.RpcError:
                return False
