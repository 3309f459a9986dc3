"""The Workbench's form, made from the schema that checks requests, so that no field is missing or other than there."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marshmallow import Schema, fields, validate

from frontend.schemas.fields import LogitBias, StrictBoolean, StrictInteger, StrictNumber, Strings, TokenIds

#: Which fields stand together. What is in none of them comes last, and what the page has places of its own for nowhere.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Sampling": ("max_tokens", "temperature", "n", "seed", "top_p", "top_k", "min_p"),
    "Penalties": ("presence_penalty", "frequency_penalty", "repetition_penalty"),
    "Log probabilities": ("logprobs", "prompt_logprobs"),
    "Where it stops": ("stop", "stop_token_ids", "min_tokens", "ignore_eos", "include_stop_str_in_output"),
    "Allowed tokens": ("logit_bias", "allowed_token_ids", "bad_words"),
    "Text and tokens": ("add_special_tokens", "skip_special_tokens", "spaces_between_special_tokens", "echo",
                        "return_token_ids", "return_tokens_as_token_ids", "user"),
}
_ELSEWHERE = {"model", "prompt", "stream", "stream_options", "activations"}
#: What the page fills in at first, where that is not the API's default.
FIRST = {"max_tokens": 32, "logprobs": 5}


@dataclass(frozen=True)
class Control:
    """A field of the form. `kind` is whole, number, flag, lines, ids, map or text; None: no bound, no default."""

    name: str
    kind: str
    low: float | None
    high: float | None
    default: object
    help: str
    first: object


def groups(schema: Schema) -> dict[str, list[Control]]:
    """Every field of a completions request that the form has, in groups."""
    known = {name for names in _GROUPS.values() for name in names}
    rest = tuple(name for name in schema.load_fields if name not in known | _ELSEWHERE)
    named = {**_GROUPS, "More": rest} if rest else _GROUPS
    return {title: [_control(name, schema.load_fields[name]) for name in names] for title, names in named.items()}


def _control(name: str, field: fields.Field[object]) -> Control:
    bounds = next((rule for rule in field.validators if isinstance(rule, validate.Range)), None)
    default = field.load_default if isinstance(field.load_default, (int, float, bool)) else None
    return Control(name, _kind(field), bounds.min if bounds else None, bounds.max if bounds else None, default,
                   str(field.metadata.get("description", "")), FIRST.get(name))


def _kind(field: fields.Field[object]) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (StrictBoolean, "flag"), (StrictInteger, "whole"), (StrictNumber, "number"), (Strings, "lines"),
        (TokenIds, "ids"), (LogitBias, "map"))
    return next((kind for cls, kind in kinds if isinstance(field, cls)), "text")
