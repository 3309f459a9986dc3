"""/healthz speaks for the process alone; /readyz names each part that does not answer."""
from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.unit.conftest import NOBODY


@pytest.fixture
def redis_url() -> str:
    return f"redis://{NOBODY}"


def test_the_process_is_healthy_without_any_other_part(anonymous: FlaskClient) -> None:
    answer = anonymous.get("/healthz")
    assert (answer.status_code, answer.get_json()) == (200, {"status": "ok"})


def test_what_is_missing_is_named(anonymous: FlaskClient) -> None:
    answer = anonymous.get("/readyz")
    error = answer.get_json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (503, "server_error", "unavailable")
    assert {detail["param"] for detail in error["details"]} == {"redis", "triton"}
    assert "redis, triton" in error["message"]
    assert "Retry-After" in answer.headers
