"""A disk that is full is the server's trouble: 503, and not a body that is said to have broken off."""
from __future__ import annotations

import io
import tempfile
from typing import IO, Any

import pytest
from flask.testing import FlaskClient


@pytest.fixture(autouse=True)
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every temporary file is on a device that is always full."""

    def full(*_: Any, **__: Any) -> IO[bytes]:
        return open("/dev/full", "r+b", buffering=0)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)


def test_a_job(client: FlaskClient) -> None:
    answer = client.post("/v1/jobs", json={"model": "m", "prompts": ["a"]})
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "unavailable")
    assert "disk is full" in answer.json["error"]["message"]


def test_a_file(client: FlaskClient) -> None:
    form = {"purpose": "batch", "file": (io.BytesIO(b"x" * 2**20), "a.jsonl")}
    answer = client.post("/v1/files", data=form, content_type="multipart/form-data")
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "unavailable")
