"""Schemathesis drives the API from its own description: nothing undocumented, and never a 5xx."""
from __future__ import annotations

import httpx
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from frontend.api.openapi import describe
from frontend.settings import Settings
from tests.stack import Stack

DOCUMENT = describe(Settings.from_environment().max_total_tokens)
schema = schemathesis.openapi.from_dict(DOCUMENT)


@schema.parametrize()
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_answer_is_documented_and_none_is_a_5xx(case: schemathesis.Case, stack: Stack) -> None:
    case.call_and_validate(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=120,
                           excluded_checks=[positive_data_acceptance])  # a schema takes 2.0 for an integer


def test_the_description_is_the_one_that_is_served(http: httpx.Client) -> None:
    served = http.get("/openapi.json").json()
    assert served == DOCUMENT
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/v1/tokenize",
            "/v1/detokenize", "/healthz", "/readyz", "/openapi.json"} <= set(served["paths"])
