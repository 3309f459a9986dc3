"""From marshmallow's errors to the API's: every problem of a body, in a stable order, with a hint for a misspelling."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from marshmallow import RAISE, Schema, ValidationError, fields, missing, pre_load

from frontend.errors import Problem
from frontend.schemas.fields import MESSAGES, REQUIRED_NULL, wrong_type
from frontend.schemas.json_body import printable

#: A body can hold a million wrong fields; the answer lists so many of its problems and says that there are more.
MAX_PROBLEMS = 100


class StrictSchema(Schema):
    """A schema that refuses what it does not know, and takes null for "left out" where a field allows null."""

    class Meta:
        """marshmallow's options."""

        unknown = RAISE

    def on_bind_field(self, field_name: str, field_obj: fields.Field[Any]) -> None:
        """Only of a field that may be left out, null says that it can be."""
        if field_obj.required:
            field_obj.error_messages = {**field_obj.error_messages, "null": REQUIRED_NULL}

    @pre_load
    def _normalize(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        # One unknown field is enough to fail, and marshmallow's time grows with the square of their number.
        unknown = next((name for name in data if name not in self.load_fields), None)
        return {
            name: value
            for name, value in data.items()
            if (name in self.load_fields or name == unknown)
            and not (value is None and name in self.load_fields and self.load_fields[name].allow_none)
        }


class StrictNested(fields.Nested):
    """A JSON object with a schema of its own."""

    default_error_messages = MESSAGES

    def deserialize(self, value: Any, attr: str | None = None, data: Any = None, **kwargs: Any) -> Any:
        """As marshmallow's, with the answer's words for what is no object."""
        if value is not missing and value is not None and type(value) is not dict:
            raise wrong_type("an object", value)
        return super().deserialize(value, attr, data, **kwargs)


def check(schema: Schema, data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The fields of `data` that are right, defaults filled in, and the problems of all others."""
    try:
        return schema.load(data), []
    except ValidationError as error:
        problems = _problems(schema, data, error.messages_dict)
        found = list(islice(problems, MAX_PROBLEMS))
        if next(problems, None):
            found.append(Problem(f"These are the first {MAX_PROBLEMS} problems; there are more."))
        values = error.valid_data if isinstance(error.valid_data, dict) else {}
        return values, found


def _problems(
    schema: Schema, data: Mapping[str, Any], messages: Mapping[str, Any], path: str = ""
) -> Iterator[Problem]:
    """Unknown fields first, since a misspelled name explains a missing one; then the known ones in schema order."""
    for name in data:
        if name not in schema.load_fields:
            yield Problem(_unknown(path + name, name, schema), printable(path + name))
    for name, field in schema.load_fields.items():
        found = messages.get(name)
        if isinstance(found, Mapping) and isinstance(field, fields.Nested):
            yield from _problems(field.schema, data[name], found, f"{path}{name}.")
        elif found:
            yield Problem(f"{path}{name} {found[0]}", path + name)


def _unknown(path: str, name: str, schema: Schema) -> str:
    message = f"Unknown field: {printable(path)}."
    # Only a name of ordinary length can be a misspelling, and the comparison takes time that grows with its length.
    near = get_close_matches(name.lower(), schema.load_fields, n=1, cutoff=0.7) if len(name) <= 40 else []
    return f"{message[:-1]}; did you mean {near[0]}?" if near else message
