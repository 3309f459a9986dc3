"""POST /v1/tokenize and /v1/detokenize: text to tokens and back, also while the model is Cold."""
from __future__ import annotations

from flask import Blueprint, Response

from frontend.api.answers import json_answer
from frontend.api.auth import require_caller
from frontend.api.body import json_body
from frontend.api.counting import observation
from frontend.api.listing import query
from frontend.api.parts import parts
from frontend.errors import InvalidRequest
from frontend.schemas.tokens import load_detokenize, load_tokenize

bp = Blueprint("tokenize", __name__)


@bp.post("/v1/tokenize")
def tokenize() -> Response:
    """The ids of a text, and the text that each of them stands for."""
    query()
    asked = load_tokenize(json_body())
    observation().asked = asked.model
    require_caller("completions")
    inference = parts().inference
    card = inference.model(asked.model)
    (prompt,) = inference.tokenize(card.id, [asked.prompt], asked.add_special_tokens)
    return json_answer({
        "model": card.id,
        "count": len(prompt.ids),
        "max_model_len": card.max_model_len,
        "tokens": prompt.ids,
        "token_strs": prompt.texts,
    })


@bp.post("/v1/detokenize")
def detokenize() -> Response:
    """The text of ids, special tokens included: tokenizing it without adding any gives ids of /v1/tokenize again."""
    query()
    asked = load_detokenize(json_body())
    observation().asked = asked.model
    require_caller("completions")
    inference = parts().inference
    card = inference.model(asked.model)
    for place, token in enumerate(asked.tokens):
        if token >= card.vocab_size:
            raise InvalidRequest(
                f"tokens[{place}] is {token}, and the vocabulary of {card.id} has {card.vocab_size} ids.", "tokens"
            )
    described = inference.describe(card.id, asked.tokens, skip_special_tokens=False)
    return json_answer({"model": card.id, "prompt": "".join(described.texts), "token_strs": described.texts})
