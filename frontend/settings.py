"""Settings: everything that the environment decides, read once, checked, and frozen."""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from environs import Env, EnvError

MODEL_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"[^\s=,:/]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}")
_PUBLIC_URL = re.compile(r"(https://[A-Za-z0-9.-]+|http://(127\.0\.0\.1|localhost))(:\d{1,5})?/?")
_URLS = "must be host:port, or id=host:port for each model, separated by commas; | between several Tritons of the same"
_LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingsError(Exception):
    """A setting that can't be used; the message is one line that names it."""


@dataclass(frozen=True)
class Settings:
    """What the environment decided. `triton_urls` are the gRPC addresses of Tritons that all serve every model, or
    those of each model id; `public_url` is where people reach this, without a slash at its end; `trusted_proxies` are
    those whose X-Forwarded-For is believed; `metrics_address` is the host and port of GET /metrics; `max_loaded` is for
    each Triton, None for as many as are wanted; `job_storage` is where files and shards of Activations are, `job_days`
    how long what is left of Jobs is kept."""

    port: int
    public_url: str
    trusted_proxies: int
    home: Path
    database_url: str
    redis_url: str
    triton_urls: tuple[str, ...] | Mapping[str, tuple[str, ...]]
    models: tuple[str, ...]
    metrics_address: tuple[str, int]
    max_body_bytes: int
    max_job_bytes: int
    max_total_tokens: int
    request_timeout_seconds: float
    load_timeout_seconds: float
    max_loaded: int | None
    requests_per_minute: int
    active_requests: int
    waiting_requests: int
    workers: int
    threads: int
    hold_lease_seconds: float
    job_storage: str
    job_days: int
    log_level: str

    @classmethod
    def from_environment(cls) -> Settings:
        """Read `STRATA_*`. Raises SettingsError with one line for the first setting that is wrong."""
        home = Path(_read("STRATA_HOME", ".strata", str)).expanduser().resolve()
        port = _read("STRATA_PORT", 8080, _whole(1, 65535))
        return cls(
            port=port,
            public_url=_read("STRATA_PUBLIC_URL", f"http://127.0.0.1:{port}", _public_url),
            trusted_proxies=_read("STRATA_TRUSTED_PROXIES", 0, _whole(0, 10)),
            home=home,
            database_url=_read("STRATA_DATABASE_URL", f"sqlite:///{home / 'strata.db'}", _database_url),
            redis_url=_read("STRATA_REDIS_URL", f"unix://{home / 'valkey.sock'}", _redis_url),
            triton_urls=_read("STRATA_TRITON_URLS", (f"127.0.0.1:{_grpc_port()}",), _triton_urls),
            models=_read("STRATA_MODELS", ("smollm2-135m",), _models),
            metrics_address=_read("STRATA_METRICS_ADDRESS", ("127.0.0.1", 8003), _address),
            max_body_bytes=_read("STRATA_MAX_BODY_MB", 16, _whole(1, 1024)) * 1024 * 1024,
            max_job_bytes=_read("STRATA_MAX_JOB_MB", 50, _whole(1, 1024)) * 1024 * 1024,
            max_total_tokens=_read("STRATA_MAX_TOTAL_TOKENS", 32_000, _whole(1, 2**31 - 1)),
            request_timeout_seconds=_read("STRATA_REQUEST_TIMEOUT", 600.0, _seconds),
            load_timeout_seconds=_read("STRATA_LOAD_TIMEOUT_SECONDS", 900.0, _seconds),
            max_loaded=_read("STRATA_MAX_LOADED", None, _whole(1, 1000)),
            requests_per_minute=_read("STRATA_REQUESTS_PER_MINUTE", 600, _whole(1, 1_000_000)),
            active_requests=_read("STRATA_ACTIVE_REQUESTS", 16, _whole(1, 100_000)),
            waiting_requests=_read("STRATA_WAITING_REQUESTS", 64, _whole(0, 100_000)),
            workers=_read("STRATA_WORKERS", 2, _whole(1, 1000)),
            threads=_read("STRATA_THREADS", 256, _whole(1, 10_000)),
            hold_lease_seconds=_read("STRATA_HOLD_LEASE", 30.0, _seconds),
            job_storage=_read("STRATA_JOB_STORAGE", f"file://{home / 'storage'}", _storage),
            job_days=_read("STRATA_JOB_DAYS", 30, _whole(1, 3650)),
            log_level=_read("STRATA_LOG_LEVEL", "info", _log_level),
        )


def _read(name: str, default: Any, parse: Callable[[str], Any]) -> Any:
    if name not in os.environ:
        return default
    try:
        text = str(Env().str(name)).strip()
        if not text:
            raise ValueError("is empty; set it or take it out of the environment")
        return parse(text)
    except (ValueError, EnvError) as error:
        raise SettingsError(f"{name} {error}") from None


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII) or not float(text) > 0:
        raise ValueError("must be a number of seconds above 0")
    return float(text)


def _public_url(text: str) -> str:
    """https, or http on this machine: over plain http, anybody on the way could read passwords and keys."""
    if not _PUBLIC_URL.fullmatch(text):
        raise ValueError("must be https://host or https://host:port, or http:// with 127.0.0.1 or localhost")
    return text.rstrip("/")


def _log_level(text: str) -> str:
    if text.lower() not in _LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(_LOG_LEVELS)}")
    return text.lower()


def _database_url(text: str) -> str:
    if not text.startswith(("sqlite:///", "postgresql://", "postgresql+psycopg://")):
        raise ValueError("must start with sqlite:/// or postgresql://")
    return text.replace("postgresql://", "postgresql+psycopg://", 1)


def _redis_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must start with redis://, rediss:// or unix://")
    return text


def _storage(text: str) -> str:
    if text.startswith("s3://") and len(text) > len("s3://"):
        return text.rstrip("/")
    if text.startswith("file:///"):
        return text
    raise ValueError("must be s3://bucket, with a folder in it or not, or file:///folder")


def _address(text: str) -> tuple[str, int]:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("must be host:port, such as 127.0.0.1:8003")
    host, _, port = text.rpartition(":")
    return host.strip("[]"), _whole(1, 65535)(port)


def _grpc_port() -> int:
    port: int = _read("STRATA_TRITON_GRPC_PORT", 8001, _whole(1, 65535))
    return port


def _models(text: str) -> tuple[str, ...]:
    models = tuple(item.strip() for item in text.split(","))
    for model in models:
        if not MODEL_ID.fullmatch(model):
            raise ValueError("must be model ids separated by commas, such as llama-8b,smollm2-135m")
    if len(set(models)) < len(models):
        raise ValueError("names a model twice")
    return models


def _triton_urls(text: str) -> tuple[str, ...] | Mapping[str, tuple[str, ...]]:
    """Either `host:port|host:port`, or `id=host:port|host:port,id2=host:port`."""
    if "=" not in text:
        return _addresses(text)
    urls: dict[str, tuple[str, ...]] = {}
    for item in text.split(","):
        model, _, addresses = item.strip().partition("=")
        if not MODEL_ID.fullmatch(model):
            raise ValueError(_URLS)
        if model in urls:
            raise ValueError(f"names {model} twice")
        urls[model] = _addresses(addresses)
    return MappingProxyType(urls)


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(item.strip() for item in text.split("|"))
    if not all(_ADDRESS.fullmatch(address) for address in addresses):
        raise ValueError(_URLS)
    if len(set(addresses)) < len(addresses):
        raise ValueError("names an address twice")
    return addresses
