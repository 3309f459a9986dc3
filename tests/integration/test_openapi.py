"""Schemathesis drives the API from its own description: nothing undocumented, and never a 5xx."""
from __future__ import annotations

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.stack import Stack


@pytest.fixture(scope="session")
def api(stack: Stack) -> schemathesis.schemas.BaseSchema:
    loaded = schemathesis.openapi.from_url(f"{stack.url}/openapi.json")
    loaded.config.base_url = stack.url
    return loaded


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_answer_is_documented_and_none_is_a_5xx(case: schemathesis.Case, stack: Stack) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {stack.key}"}, timeout=120)


def test_the_description_names_every_route_that_answers(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/v1/tokenize",
            "/v1/detokenize", "/healthz", "/readyz", "/openapi.json"} <= set(paths)
