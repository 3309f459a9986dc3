"""What is sent to make Jobs: a request of a Job, a line of a batch's file, and what stands around them."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marshmallow import Schema, ValidationError, fields

from frontend.errors import InvalidRequest, Problem
from frontend.schemas.checks import StrictSchema, check
from frontend.schemas.fields import MESSAGES, KeptString, StrictString, wrong_type
from frontend.schemas.json_body import parse_object, printable

#: The most characters of a custom_id, a Job's name, and an Idempotency-Key.
MAX_NAME = 256
#: The one route that a batch can ask for.
ENDPOINT = "/v1/completions"
WINDOW = "24h"
_COMPLETION = {"$ref": "#/components/schemas/Completion"}


class JsonObject(fields.Field[Any]):
    """An object that is checked elsewhere."""

    default_error_messages = MESSAGES

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong_type("an object", value)
        return value


class OneOf(StrictString):
    """A string that can be just one."""

    def __init__(self, value: str, **kwargs: Any) -> None:
        super().__init__(metadata={"const": value, **kwargs.pop("metadata", {})}, **kwargs)
        self._value = value

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        if text != self._value:
            raise ValidationError(f"must be '{self._value}', and is '{printable(text)}'.")
        return text


class JobRequestSchema(StrictSchema):
    """One request of a Job: also a line of a Job that is sent as JSONL."""

    custom_id = KeptString(1, MAX_NAME, required=True, metadata={
        "description": "Names its result; no two requests of a Job have the same."})
    body = JsonObject(required=True, metadata=_COMPLETION)


class BatchLineSchema(JobRequestSchema):
    """One line of a file with the purpose batch."""

    method = OneOf("POST", required=True)
    url = OneOf(ENDPOINT, required=True)


class JobSchema(StrictSchema):
    """The body of POST /v1/jobs but for its lists: model and prompts, or requests."""

    name = KeptString(1, MAX_NAME, load_default=None, allow_none=True)
    model = StrictString(1, load_default=None, allow_none=False, metadata={
        "description": "With prompts: an id of GET /v1/models."})
    params = JsonObject(load_default=dict, metadata={
        "description": "With prompts: further fields of a completions request, the same for all."})
    prompts = fields.Raw(metadata={"type": "array", "items": {"anyOf": [
        {"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]}})
    requests = fields.Raw(metadata={"type": "array", "items": {"$ref": "#/components/schemas/JobRequest"}})


class BatchSchema(StrictSchema):
    """The body of POST /v1/batches."""

    input_file_id = KeptString(1, required=True)
    endpoint = OneOf(ENDPOINT, required=True)
    completion_window = OneOf(WINDOW, required=True)
    metadata = JsonObject(load_default=None, allow_none=True, metadata={
        "type": "object", "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 512}})


_BATCH, _JOB = BatchSchema(), JobSchema()
JOB_LINE, BATCH_LINE = JobRequestSchema(), BatchLineSchema()


def check_job(members: Mapping[str, Any]) -> dict[str, Any]:
    """Check what stands beside the lists of a Job. Raises InvalidRequest."""
    values, problems = check(_JOB, members)
    if problems:
        raise InvalidRequest.of(problems)
    return values


def check_line(schema: Schema, line: Any) -> list[Problem]:
    """What is wrong with a line, its completions request apart."""
    if type(line) is not dict:
        return [Problem("must be an object.")]
    if schema is JOB_LINE and line.keys() == {"custom_id", "body"}:
        name = line["custom_id"]
        if type(name) is str and 1 <= len(name) <= MAX_NAME and "\0" not in name and type(line["body"]) is dict:
            return []  # by far the most, and marshmallow is slow
    return check(schema, line)[1]


def load_batch(body: bytes) -> dict[str, Any]:
    """Check the body of POST /v1/batches. Raises BadJson or InvalidRequest."""
    values, problems = check(_BATCH, parse_object(body))
    metadata = values.get("metadata") or {}
    if len(metadata) > 16 or any(type(value) is not str or len(value) > 512 or len(key) > 64
                                 for key, value in metadata.items()):
        problems.append(Problem("metadata must hold at most 16 strings of at most 512 characters, under keys of at "
                                "most 64.", "metadata"))
    if problems:
        raise InvalidRequest.of(problems)
    return values
