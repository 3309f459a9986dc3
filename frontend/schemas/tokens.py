"""The bodies of POST /v1/tokenize and /v1/detokenize; names as vLLM's routes have them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marshmallow import Schema

from frontend.errors import InvalidRequest
from frontend.schemas.checks import StrictSchema, check
from frontend.schemas.fields import StrictBoolean, StrictString, TokenIds
from frontend.schemas.json_body import parse_object


class TokenizeSchema(StrictSchema):
    """One body of POST /v1/tokenize."""

    model = StrictString(1, required=True, metadata={"description": "An id of GET /v1/models."})
    prompt = StrictString(required=True)
    add_special_tokens = StrictBoolean(load_default=True, metadata={
        "description": "false tokenizes the text as it is, without BOS."})


class DetokenizeSchema(StrictSchema):
    """One body of POST /v1/detokenize."""

    model = StrictString(1, required=True, metadata={"description": "An id of GET /v1/models."})
    tokens = TokenIds(1, required=True)


@dataclass(frozen=True)
class TokenizeRequest:
    """A text and how to tokenize it."""

    model: str
    prompt: str
    add_special_tokens: bool


@dataclass(frozen=True)
class DetokenizeRequest:
    """Token ids; they may be out of the model's vocabulary."""

    model: str
    tokens: tuple[int, ...]


_TOKENIZE, _DETOKENIZE = TokenizeSchema(), DetokenizeSchema()


def load_tokenize(body: bytes) -> TokenizeRequest:
    """Check the body of POST /v1/tokenize. Raises BadJson, or InvalidRequest with every problem of it."""
    return TokenizeRequest(**_load(_TOKENIZE, body))


def load_detokenize(body: bytes) -> DetokenizeRequest:
    """Check the body of POST /v1/detokenize. Raises BadJson, or InvalidRequest with every problem of it."""
    return DetokenizeRequest(**_load(_DETOKENIZE, body))


def _load(schema: Schema, body: bytes) -> dict[str, Any]:
    values, problems = check(schema, parse_object(body))
    if problems:
        raise InvalidRequest.of(problems)
    return values
