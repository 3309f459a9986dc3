"""Starts the real Strata for the tests: what `make serve` runs, on ports and in a folder of its own."""
from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
#: Seconds to a Warm model on two slow cores, checkpoints included.
PATIENCE = 600.0


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@dataclass
class Stack:
    """A running Strata."""

    process: subprocess.Popen[bytes]
    home: Path
    port: int
    grpc_port: int
    metrics_port: int
    frontend_metrics_port: int

    @classmethod
    def start(cls, home: Path, models: str, checkpoints: Path | None = None, repository: Path = REPOSITORY,
              **environment: str) -> Stack:
        """Start it in `home` and wait until it says that it is ready."""
        stack = cls.launch(home, models, checkpoints, repository, **environment)
        deadline = time.monotonic() + PATIENCE
        while "Strata is ready" not in stack.output():
            if stack.process.poll() is not None or time.monotonic() > deadline:
                stack.stop()
                raise RuntimeError(f"Strata did not start:\n{stack.output()[-4000:]}")
            time.sleep(0.2)
        return stack

    @classmethod
    def launch(cls, home: Path, models: str, checkpoints: Path | None = None, repository: Path = REPOSITORY,
               **environment: str) -> Stack:
        """Start it in `home` and wait for nothing. Its output is in home/out. `repository` is the code that runs."""
        home.mkdir(parents=True, exist_ok=True)
        port, grpc_port, metrics_port, frontend_metrics_port = free_ports(4)
        environment = {
            # Most tests are about something else than limits, and ask more often and more at once than one person may.
            "STRATA_REQUESTS_PER_MINUTE": "1000000", "STRATA_ACTIVE_REQUESTS": "64", "STRATA_WAITING_REQUESTS": "1000",
            **os.environ, "STRATA_HOME": str(home), "STRATA_MODELS": models, "STRATA_PORT": str(port),
            "STRATA_TRITON_GRPC_PORT": str(grpc_port), "STRATA_TRITON_METRICS_PORT": str(metrics_port),
            "STRATA_METRICS_PORT": str(frontend_metrics_port), **environment,
        }
        if checkpoints is not None:
            environment["STRATA_CHECKPOINTS"] = str(checkpoints)
        with (home / "out").open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "deploy.local"], cwd=repository, env=environment,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        return cls(process, home, port, grpc_port, metrics_port, frontend_metrics_port)

    @property
    def url(self) -> str:
        """Where the frontend listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc(self) -> str:
        """Triton's gRPC address."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def metrics(self) -> str:
        """Triton's metrics page."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    @property
    def frontend_metrics(self) -> str:
        """The frontend's metrics page."""
        return f"http://127.0.0.1:{self.frontend_metrics_port}/metrics"

    @property
    def key(self) -> str:
        """The demo key."""
        return (self.home / "demo-key").read_text().strip()

    def output(self) -> str:
        """What the supervisor printed so far."""
        return (self.home / "out").read_text(errors="replace")

    def stop(self) -> None:
        """End it as Ctrl-C does, and wait for all of it to be gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
