"""What a prompt looks like inside the model: the residual stream's length and its reading by the output head."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from frontend.completions.plan import Plan
from frontend.completions.request import CompletionRequest
from frontend.completions.walk import Run
from frontend.errors import InvalidRequest
from frontend.inference import Inference
from frontend.schemas.activations import Layers
from frontend.schemas.checks import StrictSchema, check
from frontend.schemas.completions import check_completion
from frontend.schemas.fields import Prompts, StrictBoolean, StrictString

#: Layers × positions of one picture, and the likeliest tokens for each.
MOST_ROWS, TOP = 2000, 5


class LensSchema(StrictSchema):
    """The body of POST /workbench/lens."""

    model = StrictString(1, required=True)
    prompt = Prompts(required=True)
    add_special_tokens = StrictBoolean(load_default=True)
    layers = Layers(required=True)


@dataclass(frozen=True)
class LensRequest:
    """The completions request of one token that has the residual stream captured over its prompt."""

    request: CompletionRequest

    def check_plan(self, plan: Plan) -> None:
        """Raises InvalidRequest for a picture that is too large."""
        asked = plan.capture(0)
        assert asked is not None
        rows = len(asked.layers) * plan.prompt_tokens
        if rows > MOST_ROWS:
            raise InvalidRequest(f"This picture has {len(asked.layers)} Layers × {plan.prompt_tokens} positions, and "
                                 f"one has at most {MOST_ROWS} places. Choose fewer Layers or a shorter prompt.",
                                 "layers")


_SCHEMA = LensSchema()


def load(body: dict[str, Any], max_total_tokens: int) -> LensRequest:
    """Check a body. Raises InvalidRequest."""
    values, problems = check(_SCHEMA, body)
    if not problems and len(values["prompt"]) > 1:
        raise InvalidRequest("A picture is of one prompt.", "prompt")
    if problems:
        raise InvalidRequest.of(problems)
    rest = {name: value for name, value in body.items() if name != "layers"}
    asked = {"layers": body["layers"], "positions": "prompt", "dtype": "float32"}
    return LensRequest(check_completion(
        {**rest, "max_tokens": 1, "temperature": 0, "activations": asked}, max_total_tokens))


def look(run: Run, inference: Inference) -> dict[str, Any]:
    """The picture: `tokens` [positions], `layers`, `norms` [layers][positions] and `lens` [layers][positions][TOP] of
    token texts with their probabilities."""
    activations = run.file().activations
    residual = np.frombuffer(b"".join(activations.pieces()), "<f4").reshape(activations.shape)
    model, ids = run.plan.card.id, run.plan.prompts[0].ids
    texts = inference.vocabulary(model).texts
    capture = run.plan.capture(0)
    assert capture is not None  # the request asked for it
    found = inference.lens(model, residual, [layer == "final_norm" for layer in capture.layers], TOP)
    return {
        "model": model, "tokens": [texts[token] for token in ids], "token_ids": ids, "layers": capture.layers,
        "norms": np.linalg.norm(residual, axis=2).round(4).tolist(),
        "lens": [[[[texts[token], round(float(chance), 4)] for token, chance in zip(*place, strict=True)]
                  for place in zip(ids_of, chances_of, strict=True)]
                 for ids_of, chances_of in zip(found.ids.tolist(), found.probabilities.tolist(), strict=True)],
    }
