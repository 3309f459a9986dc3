"""Settings come from the environment, checked; a wrong one is one clear line."""
from __future__ import annotations

import os
from pathlib import Path

import pytest

from frontend.settings import Settings, SettingsError


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("STRATA_"):
            monkeypatch.delenv(name)


def test_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment()
    home = tmp_path.resolve() / ".strata"
    assert settings == Settings(
        port=8080, public_url="http://127.0.0.1:8080", trusted_proxies=0, home=home,
        database_url=f"sqlite:///{home}/strata.db", redis_url=f"unix://{home}/valkey.sock",
        triton_urls=("127.0.0.1:8001",), models=("smollm2-135m",), metrics_address=("127.0.0.1", 8003),
        max_body_bytes=16 * 2**20, max_total_tokens=32_000, request_timeout_seconds=600, load_timeout_seconds=900,
        max_loaded=None,
        requests_per_minute=600, active_requests=16, waiting_requests=64, workers=2, threads=256, hold_lease_seconds=30,
        max_job_bytes=50 * 2**20, job_storage=f"file://{home}/storage", job_days=30, log_level="info",
    )


@pytest.mark.parametrize(("text", "url"), [
    ("https://strata.example/", "https://strata.example"), ("https://strata.example:8443", "https://strata.example:8443"),
    ("http://localhost:80", "http://localhost:80")])
def test_the_public_url(monkeypatch: pytest.MonkeyPatch, text: str, url: str) -> None:
    monkeypatch.setenv("STRATA_PUBLIC_URL", text)
    assert Settings.from_environment().public_url == url


@pytest.mark.parametrize("text", ["http://strata.example", "ftp://x", "strata.example", "https://x/y", "https://a b"])
def test_a_public_url_where_passwords_could_be_read_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STRATA_PUBLIC_URL", text)
    with pytest.raises(SettingsError, match="STRATA_PUBLIC_URL must be https"):
        Settings.from_environment()


@pytest.mark.parametrize(("name", "text", "field", "value"), [
    ("STRATA_PORT", "80", "port", 80),
    ("STRATA_MAX_BODY_MB", "1", "max_body_bytes", 2**20),
    ("STRATA_MAX_JOB_MB", "2", "max_job_bytes", 2**21),
    ("STRATA_JOB_STORAGE", "s3://bucket/folder/", "job_storage", "s3://bucket/folder"),
    ("STRATA_JOB_STORAGE", "file:///srv/strata", "job_storage", "file:///srv/strata"),
    ("STRATA_JOB_DAYS", "7", "job_days", 7),
    ("STRATA_MAX_TOTAL_TOKENS", "64", "max_total_tokens", 64),
    ("STRATA_REQUEST_TIMEOUT", "2.5", "request_timeout_seconds", 2.5),
    ("STRATA_LOG_LEVEL", "DEBUG", "log_level", "debug"),
    ("STRATA_MODELS", "llama-8b, tiny-llama", "models", ("llama-8b", "tiny-llama")),
    ("STRATA_DATABASE_URL", "postgresql://u:p@h/d", "database_url", "postgresql+psycopg://u:p@h/d"),
    ("STRATA_REDIS_URL", "rediss://h:1/0", "redis_url", "rediss://h:1/0"),
    ("STRATA_TRITON_GRPC_PORT", "9001", "triton_urls", ("127.0.0.1:9001",)),
    ("STRATA_METRICS_ADDRESS", "0.0.0.0:9100", "metrics_address", ("0.0.0.0", 9100)),
    ("STRATA_METRICS_ADDRESS", "[::1]:9100", "metrics_address", ("::1", 9100)),
    ("STRATA_TRITON_URLS", "triton:8001", "triton_urls", ("triton:8001",)),
    ("STRATA_TRITON_URLS", "[::1]:8001", "triton_urls", ("[::1]:8001",)),
    ("STRATA_TRITON_URLS", "llama-8b=a:1, llama-70b=b:2", "triton_urls", {"llama-8b": ("a:1",), "llama-70b": ("b:2",)}),
    ("STRATA_TRITON_URLS", "a:1|b:2", "triton_urls", ("a:1", "b:2")),
    ("STRATA_TRITON_URLS", "llama-8b=a:1|b:2,tiny-llama=b:2", "triton_urls",
     {"llama-8b": ("a:1", "b:2"), "tiny-llama": ("b:2",)}),
    ("STRATA_LOAD_TIMEOUT_SECONDS", "60", "load_timeout_seconds", 60),
    ("STRATA_MAX_LOADED", "2", "max_loaded", 2),
    ("STRATA_WORKERS", "3", "workers", 3),
])
def test_each_setting(monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: object) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(Settings.from_environment(), field) == value


@pytest.mark.parametrize(("name", "text"), [
    ("STRATA_PORT", ""), ("STRATA_PORT", "http"), ("STRATA_PORT", "0"), ("STRATA_PORT", "65536"),
    ("STRATA_PORT", "80.0"), ("STRATA_PORT", "8_0"), ("STRATA_PORT", "１"), ("STRATA_HOME", " "),
    ("STRATA_MAX_BODY_MB", "0"), ("STRATA_METRICS_ADDRESS", "9100"), ("STRATA_METRICS_ADDRESS", "localhost:0"),
    ("STRATA_MAX_TOTAL_TOKENS", "-1"), ("STRATA_REQUEST_TIMEOUT", "0"), ("STRATA_REQUEST_TIMEOUT", "inf"),
    ("STRATA_REQUEST_TIMEOUT", "nan"), ("STRATA_LOG_LEVEL", "loud"), ("STRATA_MODELS", ","), ("STRATA_MODELS", "a,a"),
    ("STRATA_MODELS", "../x"), ("STRATA_DATABASE_URL", "mysql://x"), ("STRATA_REDIS_URL", "localhost"),
    ("STRATA_TRITON_URLS", "triton"), ("STRATA_TRITON_URLS", "http://triton:8000"), ("STRATA_TRITON_URLS", "a=b"),
    ("STRATA_TRITON_URLS", "a=b:1,a=c:2"), ("STRATA_TRITON_URLS", "a:1,b:2"), ("STRATA_TRITON_URLS", "a:1|a:1"),
    ("STRATA_TRITON_URLS", "m=a:1|"), ("STRATA_MAX_LOADED", "0"),
    ("STRATA_LOAD_TIMEOUT_SECONDS", "0"), ("STRATA_TRITON_GRPC_PORT", "x"), ("STRATA_WORKERS", "two"),
])
def test_a_wrong_setting_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError) as refused:
        Settings.from_environment()
    assert str(refused.value).startswith(f"{name} ")
    assert "\n" not in str(refused.value)


def test_settings_are_frozen() -> None:
    settings = Settings.from_environment()
    with pytest.raises(AttributeError):
        settings.port = 1  # type: ignore[misc]
