"""Starts the real frontend alone: gunicorn with several workers, as the launcher runs it, with no Triton behind it."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.stack import REPOSITORY, free_ports

PATIENCE = 60.0
_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Sample:
    """A line of a metrics page."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass
class Frontend:
    """A running gunicorn."""

    process: subprocess.Popen[bytes]
    home: Path
    port: int
    metrics_port: int

    @classmethod
    def start(cls, home: Path, workers: int = 2, **environment: str) -> Frontend:
        """Start it with its data in `home` and wait until every worker answers."""
        frontend = cls.launch(home, workers, **environment)
        deadline = time.monotonic() + PATIENCE
        while frontend.output().count("Booting worker") < workers or not frontend.answers():
            if frontend.process.poll() is not None or time.monotonic() > deadline:
                frontend.stop()
                raise RuntimeError(f"the frontend did not start:\n{frontend.output()[-4000:]}")
            time.sleep(0.1)
        return frontend

    @classmethod
    def launch(cls, home: Path, workers: int = 2, **environment: str) -> Frontend:
        """Start it and wait for nothing. Its output is in home/gunicorn.out."""
        home.mkdir(parents=True, exist_ok=True)
        port, metrics_port, nobody = free_ports(3)
        ours = {
            "STRATA_HOME": str(home), "STRATA_PORT": str(port), "STRATA_METRICS_ADDRESS": f"127.0.0.1:{metrics_port}",
            "STRATA_TRITON_URLS": f"127.0.0.1:{nobody}", "STRATA_REDIS_URL": f"redis://127.0.0.1:{nobody}",
            "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", **environment,
        }
        others = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
        command = [sys.executable, "-m", "gunicorn", "--config", "deploy/local/gunicorn.conf.py",
                   "--workers", str(workers), "frontend.app:create_app()"]
        with (home / "gunicorn.out").open("wb") as out:
            process = subprocess.Popen(command, cwd=REPOSITORY, env={**others, **ours}, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT)
        return cls(process, home, port, metrics_port)

    @property
    def url(self) -> str:
        """The public address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        """The metrics page."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def answers(self) -> bool:
        """Whether a worker answers."""
        try:
            return get(f"{self.url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def workers(self) -> list[psutil.Process]:
        """The worker processes."""
        return psutil.Process(self.process.pid).children()

    def samples(self) -> list[Sample]:
        """What the metrics page says now."""
        return samples(get(self.metrics_url).raise_for_status().text)

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(sample.value for sample in self.samples()
                   if sample.name == name and labels.items() <= sample.labels.items())

    def output(self) -> str:
        """What gunicorn and the application printed so far."""
        return (self.home / "gunicorn.out").read_text(errors="replace")

    def stop(self) -> None:
        """End it in order."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)


def get(url: str, **headers: str) -> httpx.Response:
    """GET over a connection of its own, without the certificates that take most of such a request's time."""
    return httpx.get(url, headers=headers, timeout=30, verify=False)


def samples(page: str) -> list[Sample]:
    """The lines of a metrics page."""
    return [Sample(found["name"], dict(_LABEL.findall(found["labels"] or "")), float(found["value"]))
            for found in _SAMPLE.finditer(page)]
