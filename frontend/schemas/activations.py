"""The field `activations` of a completions request: its members, their types and the values that they may have.

Which Layers and positions there are depends on the model and the prompt, and is checked beside them.
"""
from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

from marshmallow import ValidationError, fields

from frontend.completions.request import ALL, DTYPE_BYTES, NAMED_LAYERS, POSITION_WORDS, Layer
from frontend.schemas.checks import StrictSchema
from frontend.schemas.fields import MESSAGES, name_of_type, wrong_type
from frontend.schemas.json_body import printable


class Layers(fields.Field[Any]):
    """ "all", or a list of distinct Layers: indices, "embedding" and "final_norm"."""

    default_error_messages = MESSAGES

    def __init__(self, **kwargs: Any) -> None:
        layer = {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": list(NAMED_LAYERS)}]}
        shapes = [{"const": ALL}, {"type": "array", "items": layer, "minItems": 1, "uniqueItems": True}]
        super().__init__(metadata={"anyOf": shapes, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | tuple[Layer, ...]:
        if value == ALL:
            return ALL
        allowed = f"Layer indices, '{NAMED_LAYERS[0]}' and '{NAMED_LAYERS[1]}'"
        if type(value) is not list:
            _refuse(value, f"a list of {allowed}", (ALL,))
        for place, item in enumerate(value):
            if type(item) not in (int, str):
                raise ValidationError(f"must hold {allowed} only, and {attr}[{place}] is {name_of_type(item)}.")
            if type(item) is str and item not in NAMED_LAYERS:
                raise ValidationError(f"must hold {allowed} only, and {attr}[{place}] is '{printable(item)}'.")
            if type(item) is int and item < 0:
                raise ValidationError(f"holds a negative number at {attr}[{place}], and Layers are counted from 0.")
        return _distinct(value, attr)


class Positions(fields.Field[Any]):
    """A word for positions, or a list of distinct absolute ones; negative ones count from the end of the prompt."""

    default_error_messages = MESSAGES

    def __init__(self, **kwargs: Any) -> None:
        many = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}
        super().__init__(metadata={"anyOf": [{"enum": list(POSITION_WORDS)}, many], **kwargs.pop("metadata", {})},
                         **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | tuple[int, ...]:
        if type(value) is str and value in POSITION_WORDS:
            return value
        if type(value) is not list:
            _refuse(value, "a list of positions", POSITION_WORDS)
        for place, item in enumerate(value):
            if type(item) is not int:
                raise ValidationError(f"must hold whole numbers only, and {attr}[{place}] is {name_of_type(item)}.")
        return _distinct(value, attr)


class Dtype(fields.Field[Any]):
    """The data type of the numbers."""

    default_error_messages = MESSAGES

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(metadata={"enum": list(DTYPE_BYTES), **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if type(value) is not str:
            raise wrong_type("a string", value)
        if value not in DTYPE_BYTES:
            raise ValidationError(f"must be {_either(DTYPE_BYTES)}, and is '{printable(value)}'.")
        return value


class ActivationsSchema(StrictSchema):
    """`activations`."""

    layers = Layers(required=True, metadata={
        "description": "Layer k is the residual stream after decoder block k, before any final norm; embedding is what "
                       "block 0 reads, final_norm what the output head reads. all is every Layer index. The answer's "
                       "first axis keeps this order."})
    positions = Positions(load_default=ALL, metadata={
        "description": "A position runs when its token is fed to the model: every prompt token and every generated "
                       "token but the last. prompt, generated and last (the last one that ran) are parts of all; a "
                       "list holds absolute positions, negative ones count from the end of the prompt. The answer's "
                       "second axis keeps this order."})
    dtype = Dtype(load_default=None, allow_none=False, metadata={
        "description": "The data type of the numbers; left out, the model's own."})


def _refuse(value: Any, many: str, words: Collection[str]) -> NoReturn:
    """Raise the error for what is neither one of `words` nor a list."""
    if type(value) is str:
        raise ValidationError(f"must be {_either(words)}, or {many}, and is '{printable(value)}'.")
    raise wrong_type(f"{_either(words)}, or {many}", value)


def _either(words: Collection[str]) -> str:
    *most, last = (f"'{word}'" for word in words)
    return f"{', '.join(most)} or {last}" if most else last


def _distinct(items: list[Any], attr: str | None) -> tuple[Any, ...]:
    """The items as they are. Raises ValidationError for the first that stands there twice, or for none at all."""
    if not items:
        raise ValidationError("must not be an empty list.")
    seen: dict[Any, int] = {}
    for place, item in enumerate(items):
        if item in seen:
            raise ValidationError(f"must not hold one twice, and {attr}[{place}] is {attr}[{seen[item]}] again.")
        seen[item] = place
    return tuple(items)
