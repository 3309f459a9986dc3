"""A checkpoint's generation_config.json decides nothing: not the sampling, and not where a text ends."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.inference import Inference
from tests.stack import Stack

LOAD = 120.0


def answers(http: httpx.Client) -> list[dict[str, Any]]:
    """Requests that a hidden temperature, top_k or EOS would change: at temperature 1 and seeded, greedy, and long."""
    base = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 24, "return_token_ids": True}
    bodies = [base | {"seed": 1}, base | {"temperature": 0}, base | {"seed": 2, "n": 4},
              base | {"allowed_token_ids": [65, 66], "seed": 3}]
    return [http.post("/v1/completions", json=body).json()["choices"] for body in bodies]


@pytest.fixture
def hostile(stack: Stack, checkpoints: Path, http: httpx.Client) -> Any:
    """The tests' model reloaded beside a generation_config.json that would change everything.

    It stays loaded for the tests that follow: they are about the same answers.
    """
    file = checkpoints / "tiny-llama" / "generation_config.json"
    before = file.read_bytes() if file.exists() else None
    inference = Inference([stack.grpc])
    want = answers(http)
    greedy = want[1][0]["token_ids"]
    file.write_text(json.dumps({"do_sample": True, "temperature": 0.1, "top_k": 1, "eos_token_id": [greedy[1], 65, 66],
                                "max_new_tokens": 2, "repetition_penalty": 2.0}))
    try:
        inference.repository.unload("tiny-llama", stack.grpc, LOAD)
        inference.repository.load("tiny-llama", stack.grpc, LOAD)
        yield want
    finally:
        file.unlink()
        if before is not None:
            file.write_bytes(before)
        inference.close()


def test_a_generation_config_changes_no_answer(http: httpx.Client, hostile: list[dict[str, Any]]) -> None:
    assert answers(http) == hostile
