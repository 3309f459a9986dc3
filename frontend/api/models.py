"""GET /v1/models and /v1/models/{id}: what is served, and the facts that a caller needs before asking."""
from __future__ import annotations

from typing import Any

from flask import Blueprint, Response
from redis.exceptions import RedisError

from frontend.api.answers import json_answer
from frontend.api.auth import require_caller
from frontend.api.counting import observation
from frontend.api.listing import query
from frontend.api.parts import parts
from frontend.completions.activations import MIB
from frontend.completions.request import DTYPE_BYTES
from frontend.inference import ModelCard

bp = Blueprint("models", __name__)


@bp.get("/v1/models")
def list_models() -> Response:
    """Every model that is served, Warm or Cold."""
    require_caller()
    query()
    inference = parts().inference
    cards = inference.models()
    states = inference.states([card.id for card in cards])
    return json_answer({"object": "list", "data": [
        _shown(card, states[card.id], _seconds_to_warm(card.id, states[card.id])) for card in cards]})


@bp.get("/v1/models/<path:model>")
def get_model(model: str) -> Response:
    """One model."""
    require_caller()
    query()
    observation().asked = model
    inference = parts().inference
    card = inference.model(model)
    state = inference.states([card.id])[card.id]
    return json_answer(_shown(card, state, _seconds_to_warm(card.id, state)))


def _seconds_to_warm(model: str, state: str) -> float | None:
    """What the last loads took, if anybody remembers."""
    try:
        return parts().records.estimate(model, state)
    except RedisError:
        return None


def _shown(card: ModelCard, state: str, seconds_to_warm: float | None) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "strata",
        "checkpoint": card.checkpoint,
        "revision": card.revision,
        "fingerprint": card.fingerprint,
        "state": state,
        "estimated_seconds_to_warm": seconds_to_warm,
        "gpu_shape": card.gpu_shape,
        "capabilities": {
            "max_model_len": card.max_model_len,
            "vocab_size": card.vocab_size,
            "n_layers": card.n_layers,
            "hidden_size": card.hidden_size,
            "max_logprobs": card.max_logprobs,
            "full_vocab_max_prompt_tokens": card.full_vocab_max_prompt_tokens,
            "full_vocab_max_completion_tokens": card.full_vocab_max_completion_tokens,
            "bos_token": card.bos_token,
            "activations": {
                "layers": card.activation_layers,
                "dtypes": list(DTYPE_BYTES),
                "max_bytes": card.activation_max_mb * MIB,
            },
        },
    }
