"""Strict marshmallow fields: a value is of the right JSON type and within its bounds, or refused; nothing is coerced.

Each error message is the end of a sentence that starts with the field's name. Each field describes itself to
`/openapi.json` through apispec's `metadata` and the Range and Length validators.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields, validate

from frontend.completions.request import RawPrompt
from frontend.schemas.json_body import printable

#: The engine's messages carry 64-bit integers, so no integer that it gets may be larger.
MAX_INT = 2**63 - 1
MAX_PROMPTS = 1024
#: The engine computes with 32-bit numbers, where anything nearer to 0 than about 1e-38 turns into 0.
LEAST_NUMBER = 1e-37

_JSON_TYPES = {
    str: "a string", bool: "a boolean", int: "a whole number", float: "a number with a decimal point or exponent",
    list: "a list", dict: "an object", type(None): "null",
}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_CANONICAL_ID = re.compile(r"0|[1-9][0-9]{0,18}")
MESSAGES: dict[str, str | list[Any] | dict[Any, Any]] = {
    "required": "is required.", "null": "must not be null; it can be left out.",
}
#: What is said instead of a field that can't be left out.
REQUIRED_NULL = "is required, and must not be null."


def name_of_type(value: object) -> str:
    """What a parsed JSON value is, in words for an error message."""
    return _JSON_TYPES[type(value)]


def wrong_type(expected: str, value: object) -> ValidationError:
    """The error for a value of another JSON type than expected."""
    return ValidationError(f"must be {expected}, and is {name_of_type(value)}.")


class Between(validate.Range):
    """Bounds that the message states. None: no bound on that side."""

    def __call__(self, value: Any) -> Any:
        try:
            return super().__call__(value)
        except ValidationError:
            # Nobody means the largest integer of all as a bound, so only what is beyond it is told of it.
            is_below = self.max == MAX_INT and value <= MAX_INT
            bounds = Between(self.min, min_inclusive=self.min_inclusive) if is_below else self
            raise ValidationError(f"must be {bounds.words()}.") from None

    def words(self) -> str:
        """The bounds in words."""
        low = f"{'at least' if self.min_inclusive else 'greater than'} {self.min}"
        high = f"at most {self.max}"
        return high if self.min is None else low if self.max is None else f"{low} and {high}"


class StrictInteger(fields.Integer):
    """A JSON integer. 2.0, true and "2" are none."""

    default_error_messages = MESSAGES

    def __init__(self, low: int | None = 0, high: int = MAX_INT, **kwargs: Any) -> None:
        super().__init__(validate=Between(low, high), **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if type(value) is not int:
            raise wrong_type("a whole number", value)
        return value


class StrictNumber(fields.Float):
    """A JSON number, integer or not. true and "2" are none."""

    default_error_messages = MESSAGES

    def __init__(self, low: float | None = None, high: float | None = None, *, above: float | None = None,
                 **kwargs: Any) -> None:
        bounds = Between(low if above is None else above, high, min_inclusive=above is None)
        super().__init__(validate=bounds, **kwargs)
        if above is not None:
            self.metadata = {**self.metadata, "exclusiveMinimum": above}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if type(value) is not int and type(value) is not float:
            raise wrong_type("a number", value)
        if value != 0 and abs(value) < LEAST_NUMBER:
            raise ValidationError(f"must not be nearer to 0 than {LEAST_NUMBER}: the engine would take it for 0.")
        try:
            return float(value) + 0.0  # −0 becomes 0
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")


class StrictBoolean(fields.Boolean):
    """true or false. 1 and "yes" are none."""

    default_error_messages = MESSAGES

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if type(value) is not bool:
            raise wrong_type("true or false", value)
        return value


class StrictString(fields.String):
    """A JSON string of `shortest` to `longest` characters."""

    default_error_messages = MESSAGES

    def __init__(self, shortest: int = 0, longest: int | None = None, **kwargs: Any) -> None:
        super().__init__(validate=_Length(shortest or None, longest), **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if type(value) is not str:
            raise wrong_type("a string", value)
        return value


class KeptString(StrictString):
    """A string that the database keeps, so without the one character that PostgreSQL's strings can't hold."""

    def __init__(self, shortest: int = 0, longest: int | None = None, **kwargs: Any) -> None:
        metadata = {"pattern": r"^[^\u0000]*$", **kwargs.pop("metadata", {})}
        super().__init__(shortest, longest, metadata=metadata, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        if "\0" in text:
            raise ValidationError("must not hold the character U+0000.")
        return text


class _Length(validate.Length):
    def __call__(self, value: Any) -> Any:
        try:
            return super().__call__(value)
        except ValidationError:
            bounds = Between(self.min, self.max).words()
            raise ValidationError(f"must have {bounds} characters, and has {len(value)}.") from None


class TokenIds(fields.Field[Any]):
    """A list of token ids. Whether they are in the vocabulary is known only beside the model."""

    default_error_messages = MESSAGES

    def __init__(self, shortest: int = 0, **kwargs: Any) -> None:
        self.shortest = shortest
        super().__init__(metadata={**_TOKEN_IDS, "minItems": shortest, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[int, ...]:
        if type(value) is not list:
            raise wrong_type("a list of token ids", value)
        if len(value) < self.shortest:
            raise ValidationError("must hold at least one token id.")
        return token_ids(value, attr or "")


def token_ids(ids: list[Any], prefix: str) -> tuple[int, ...]:
    """Check a list of ids, millions of them at the parser's own speed; name the first bad one and its place."""
    if set(map(type, ids)) - {int}:
        place, bad = next((i, item) for i, item in enumerate(ids) if type(item) is not int)
        raise ValidationError(f"must hold token ids only, and {prefix}[{place}] is {name_of_type(bad)}.")
    if ids and min(ids) < 0:
        place = next(i for i, item in enumerate(ids) if item < 0)
        raise ValidationError(f"holds the token id {_short(ids[place])} at {prefix}[{place}], and ids start at 0.")
    return tuple(ids)


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "that is huge"


class Prompts(fields.Field[Any]):
    """One prompt or a batch: a string, a list of strings, a list of token ids, or a list of such lists."""

    default_error_messages = MESSAGES

    def __init__(self, **kwargs: Any) -> None:
        batch = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}
        one = {**_TOKEN_IDS, "minItems": 1}
        shapes = [{"type": "string"}, {**batch, "items": {"type": "string"}}, one, {**batch, "items": one}]
        super().__init__(metadata={"anyOf": shapes, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[RawPrompt, ...]:
        if type(value) is str:
            return (value,)
        if type(value) is not list:
            raise wrong_type("a string, a list of strings, a list of token ids, or a list of lists of token ids", value)
        if not value:
            raise ValidationError("must not be an empty list.")
        if type(value[0]) is int:
            return (token_ids(value, attr or ""),)
        if type(value[0]) is not str and type(value[0]) is not list:
            raise ValidationError(
                f"must hold strings, token ids or lists of token ids, and {attr}[0] is {name_of_type(value[0])}."
            )
        if len(value) > MAX_PROMPTS:
            raise ValidationError(f"must hold at most {MAX_PROMPTS} prompts, and holds {len(value)}.")
        kind = type(value[0])
        for place, item in enumerate(value):
            if type(item) is not kind:
                raise ValidationError(
                    f"must not mix kinds: {attr}[0] is {name_of_type(value[0])}, "
                    f"and {attr}[{place}] is {name_of_type(item)}."
                )
            if item == []:
                raise ValidationError(f"has a prompt without tokens at {attr}[{place}].")
        if kind is str:
            return tuple(value)
        return tuple(token_ids(ids, f"{attr}[{place}]") for place, ids in enumerate(value))


class Strings(fields.Field[Any]):
    """A list of non-empty strings. With `lone`, one string stands for a list of one, and the list is not empty."""

    default_error_messages = MESSAGES

    def __init__(self, longest: int, *, lone: bool = False, **kwargs: Any) -> None:
        self.longest, self.lone = longest, lone
        item = {"type": "string", "minLength": 1}
        many = {"type": "array", "items": item, "minItems": int(lone), "maxItems": longest}
        shape: dict[str, Any] = {"anyOf": [item, many]} if lone else many
        if kwargs.get("allow_none") and lone:
            shape["anyOf"].append({"type": "null"})
        super().__init__(metadata={**shape, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        if type(value) is str and self.lone:
            value = [value]
        elif type(value) is not list:
            raise wrong_type("a string or a list of strings" if self.lone else "a list of strings", value)
        if len(value) > self.longest or (self.lone and not value):
            low = "1 to" if self.lone else "at most"
            raise ValidationError(f"must hold {low} {self.longest} strings, and holds {len(value)}.")
        for place, item in enumerate(value):
            if type(item) is not str:
                raise ValidationError(f"must hold strings only, and {attr}[{place}] is {name_of_type(item)}.")
            if not item:
                raise ValidationError("must hold no empty string.")
        return tuple(value)


class LogitBias(fields.Field[Any]):
    """An object from token ids, as canonical decimals, to numbers from −100 to 100."""

    default_error_messages = MESSAGES
    most = 1024

    def __init__(self, **kwargs: Any) -> None:
        shape = {
            "type": "object",
            "maxProperties": self.most,
            "additionalProperties": False,
            "patternProperties": {
                f"^(?:{_CANONICAL_ID.pattern})$": {"type": "number", "minimum": -100, "maximum": 100}
            },
        }
        super().__init__(metadata={**shape, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[tuple[int, float], ...]:
        if type(value) is not dict:
            raise wrong_type("an object from token ids to numbers", value)
        if len(value) > self.most:
            raise ValidationError(f"must hold at most {self.most} token ids, and holds {len(value)}.")
        return tuple(self._bias(key, bias) for key, bias in value.items())

    @staticmethod
    def _bias(key: str, bias: Any) -> tuple[int, float]:
        if not _CANONICAL_ID.fullmatch(key):
            raise ValidationError(f"has the key '{printable(key)}', which is not a token id in plain decimal digits.")
        if type(bias) is not int and type(bias) is not float:
            raise ValidationError(f"must map '{key}' to a number, and it is {name_of_type(bias)}.")
        if not -100 <= bias <= 100:
            raise ValidationError(f"must map '{key}' to a number that is at least -100 and at most 100.")
        if bias != 0 and abs(bias) < LEAST_NUMBER:
            raise ValidationError(
                f"must map '{key}' to a number not nearer to 0 than {LEAST_NUMBER}: the engine would take it for 0.")
        return int(key), float(bias)


class AnyOf(fields.Field[Any]):
    """A field of an answer that no simple type describes: `schema` is its JSON Schema."""

    def __init__(self, schema: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(metadata={**schema, **kwargs.pop("metadata", {})}, **kwargs)
