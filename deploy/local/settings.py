"""What the environment decides for the launcher, and where it keeps things. Needs nothing but Python itself."""
from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from model_repository import catalog
from model_repository.catalog import Model

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_MODELS = "smollm2-135m"
#: Every variable that anything reads, without the prefix: what docs/run-your-own.md explains, ENGINE_CAUSES, which is
#: between an engine's own processes, and TEST_SCALE, which is the tests'.
PREFIX = "STRATA_"
NAMES = (
    "ACTIVE_REQUESTS", "CHECKPOINTS", "DATABASE_URL", "ENGINE_CAUSES", "HOLD_LEASE", "HOME", "JOB_DAYS",
    "JOB_STORAGE", "LOAD_TIMEOUT_SECONDS", "LOG_LEVEL", "MAX_BODY_MB", "MAX_JOB_MB", "MAX_LOADED",
    "MAX_TOTAL_TOKENS", "METRICS_ADDRESS", "METRICS_PORT", "MODELS", "PORT", "PUBLIC_URL", "REDIS_URL",
    "REQUESTS_PER_MINUTE", "REQUEST_TIMEOUT", "TEST_SCALE", "THREADS", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT",
    "TRITON_URLS", "TRUSTED_PROXIES", "WAITING_REQUESTS", "WORKERS",
)


class SettingsError(Exception):
    """A setting that can't be used; the message is one line that names it and says what to do."""


@dataclass(frozen=True)
class Settings:
    """One launch: the models it serves, its ports on the loopback interface and its folder."""

    home: Path
    checkpoints: Path
    models: tuple[Model, ...]
    port: int
    grpc_port: int
    metrics_port: int
    frontend_metrics_port: int

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Read `STRATA_*`. Raises SettingsError for the first name that is unknown or value that is wrong."""
        for problem in unknown_names(environment):
            raise SettingsError(problem)
        home = Path(environment.get("STRATA_HOME") or ".strata").expanduser().absolute()
        checkpoints = environment.get("STRATA_CHECKPOINTS")
        return cls(
            home=home,
            checkpoints=Path(checkpoints).expanduser().absolute() if checkpoints else home / "checkpoints",
            models=_models(environment.get("STRATA_MODELS") or DEFAULT_MODELS),
            port=_port(environment, "STRATA_PORT", 8080),
            grpc_port=_port(environment, "STRATA_TRITON_GRPC_PORT", 8001),
            metrics_port=_port(environment, "STRATA_TRITON_METRICS_PORT", 8002),
            frontend_metrics_port=_port(environment, "STRATA_METRICS_PORT", 8003),
        )

    @property
    def logs(self) -> Path:
        """The folder of one log file for each part."""
        return self.home / "log"

    @property
    def valkey_socket(self) -> Path:
        """Where Valkey listens; also what the frontend's settings take when nothing is said."""
        return self.home / "valkey.sock"

    @property
    def demo_key(self) -> Path:
        """The file that holds the demo's API key."""
        return self.home / "demo-key"

    @property
    def shared_memory_prefix(self) -> str:
        """How Triton's regions in /dev/shm begin, so that those of a killed run can be told from everyone else's."""
        return f"strata-{hashlib.sha256(str(self.home).encode()).hexdigest()[:8]}-"

    def environment(self) -> dict[str, str]:
        """The same decisions for the processes that are started, with every address spelled out."""
        return {
            "STRATA_HOME": str(self.home),
            "STRATA_CHECKPOINTS": str(self.checkpoints),
            "STRATA_MODELS": ",".join(model.id for model in self.models),
            "STRATA_PORT": str(self.port),
            "STRATA_METRICS_ADDRESS": f"127.0.0.1:{self.frontend_metrics_port}",
            "STRATA_DATABASE_URL": f"sqlite:///{self.home / 'strata.db'}",
            "STRATA_REDIS_URL": f"unix://{self.valkey_socket}",
            "STRATA_TRITON_URLS": f"127.0.0.1:{self.grpc_port}",
        }


def unknown_names(environment: Mapping[str, str]) -> Iterator[str]:
    """Every variable that begins with `STRATA_` and is none of ours, one line each: most likely it is misspelled."""
    for name in sorted(environment):
        end = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and end not in NAMES:
            near = difflib.get_close_matches(end, NAMES, n=1)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else "docs/run-your-own.md lists them"
            yield f"there is no setting {name}: {hint}"


def _models(text: str) -> tuple[Model, ...]:
    known = catalog.load()
    choice = f"choose from {', '.join(known)}"
    ids = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for id in ids:
        if id not in known:
            raise SettingsError(f"STRATA_MODELS names {id!r}, which is not in the catalog: {choice}")
    if not ids:
        raise SettingsError(f"STRATA_MODELS names no model: {choice}")
    return tuple(known[id] for id in ids)


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise SettingsError(f"{name} must be a port from 1 to 65535, not {text!r}")
    return int(text)
