"""Cases from public bug reports about hidden states of serving engines: rows missing, doubled, or another request's."""
from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.activations import complete, numbers, ran
from tests.reference import Reference
from tests.stack import Stack

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[1] / "cases" / "activations.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_row_is_its_own_tokens(stack: Stack, http: httpx.Client, checkpoints: Path, case: dict[str, Any]) -> None:
    random_, reference = random.Random(case["name"]), Reference.of(checkpoints / "tiny-llama")
    prompts = [[random_.randrange(1000, 100_000) for _ in range(length)] for length in case["prompt_tokens"]]
    request = case["request"] | {"prompt": prompts}
    if case.get("asked_before"):
        complete(http, **{name: value for name, value in request.items() if name != "activations"})
    choices = complete(http, **request)
    assert len(choices) == len(prompts) * request.get("n", 1)
    for choice in choices:
        ids, prompt, asked = ran(choice), choice["prompt_token_ids"], request["activations"].get("positions", "all")
        words = {"all": range(len(ids)), "prompt": range(len(prompt)), "generated": range(len(prompt), len(ids)),
                 "last": range(len(ids) - 1, len(ids))}
        places = list(words[asked]) if isinstance(asked, str) else [place % len(prompt) for place in asked]
        right, got = reference.run(ids), numbers(choice)
        assert len(got) == len(choice["activations"]["layers"])
        for number, layer in enumerate(choice["activations"]["layers"]):
            right[layer].check(got[number], places)
