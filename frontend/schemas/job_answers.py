"""The shapes of answers about Jobs, files and batches, for `/openapi.json` and for tests that load real answers."""
from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields, validate

from frontend.db.job_records import FINAL, UNFINISHED
from frontend.schemas.answers import AnswerSchema
from frontend.schemas.fields import AnyOf, StrictInteger, StrictString

_MOMENT = {"description": "Seconds since 1970, UTC."}
_BATCH_STATUSES = ("validating", "in_progress", "completed", "failed", "cancelled", "expired")


def _constant(value: str) -> fields.String:
    return fields.String(required=True, validate=validate.Equal(value))


def _moment(nullable: bool = True) -> StrictInteger:
    return StrictInteger(required=True, allow_none=nullable, metadata=_MOMENT)


def _page_of(kind: type[Schema]) -> dict[str, Any]:
    return {
        "object": _constant("list"), "data": fields.List(fields.Nested(kind), required=True),
        "first_id": StrictString(required=True, allow_none=True),
        "last_id": StrictString(required=True, allow_none=True), "has_more": fields.Boolean(required=True),
    }


class JobCountsSchema(AnswerSchema):
    """Requests of a Job."""

    total = StrictInteger(0, required=True)
    completed = StrictInteger(0, required=True)
    failed = StrictInteger(0, required=True)


class JobTokensSchema(AnswerSchema):
    """What a Job has cost, and what its running requests hold."""

    charged = StrictInteger(0, required=True)
    held = StrictInteger(0, required=True)


class JobErrorSchema(AnswerSchema):
    """What failed all of a Job."""

    code = StrictString(required=True)
    message = StrictString(required=True)


class JobAnswerSchema(AnswerSchema):
    """A Job."""

    id = StrictString(required=True)
    object = _constant("job")
    name = StrictString(required=True, allow_none=True)
    status = fields.String(required=True, validate=validate.OneOf((*UNFINISHED, *FINAL)))
    reason = fields.String(required=True, allow_none=True, validate=validate.OneOf(("budget_exceeded", "spend_cap")),
                           metadata={"description": "Why it is paused. It goes on by itself."})
    model = StrictString(required=True)
    created_at = _moment(nullable=False)
    started_at = _moment()
    finished_at = _moment()
    expires_at = StrictInteger(required=True, metadata={
        "description": "When it ends as expired if it is unfinished, and is erased if it is not."})
    counts = fields.Nested(JobCountsSchema, required=True)
    tokens = fields.Nested(JobTokensSchema, required=True)
    error = fields.Nested(JobErrorSchema, required=True, allow_none=True)


class ShardEntrySchema(AnswerSchema):
    """One tensor in a shard: the Activations of one choice of one request."""

    index = StrictInteger(0, required=True)
    custom_id = StrictString(required=True, allow_none=True)
    choice = StrictInteger(0, required=True)
    tensor = StrictString(required=True)
    layers = AnyOf({"type": "array"}, required=True)
    positions = AnyOf({"type": "array", "items": {"type": "integer"}}, required=True)
    shape = AnyOf({"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}, required=True)
    dtype = StrictString(required=True)


class ShardSchema(AnswerSchema):
    """A safetensors file with Activations."""

    name = StrictString(required=True)
    object = _constant("job.shard")
    url = StrictString(required=True)
    bytes = StrictInteger(0, required=True)
    sha256 = StrictString(required=True)
    entries = fields.List(fields.Nested(ShardEntrySchema), required=True)


class FileSchema(AnswerSchema):
    """A file, as OpenAI has it."""

    id = StrictString(required=True)
    object = _constant("file")
    bytes = StrictInteger(0, required=True)
    created_at = _moment(nullable=False)
    expires_at = _moment(nullable=False)
    filename = StrictString(required=True)
    purpose = fields.String(required=True, validate=validate.OneOf(("batch", "batch_output")))
    status = _constant("processed")
    status_details = StrictString(required=True, allow_none=True)


class BatchErrorSchema(AnswerSchema):
    """What is wrong with a line of a batch's file."""

    code = StrictString(required=True)
    message = StrictString(required=True)
    param = StrictString(required=True, allow_none=True)
    line = StrictInteger(required=True, allow_none=True)


class BatchErrorsSchema(AnswerSchema):
    """All that is wrong with a batch's file."""

    object = _constant("list")
    data = fields.List(fields.Nested(BatchErrorSchema), required=True)


class BatchAnswerSchema(AnswerSchema):
    """A batch, as OpenAI has it."""

    id = StrictString(required=True)
    object = _constant("batch")
    endpoint = StrictString(required=True)
    errors = fields.Nested(BatchErrorsSchema, required=True, allow_none=True)
    input_file_id = StrictString(required=True)
    completion_window = StrictString(required=True)
    status = fields.String(required=True, validate=validate.OneOf(_BATCH_STATUSES))
    model = StrictString(required=True, allow_none=True)
    output_file_id = StrictString(required=True, allow_none=True)
    error_file_id = StrictString(required=True, allow_none=True)
    created_at = _moment(nullable=False)
    in_progress_at = _moment()
    expires_at = _moment()
    finalizing_at = _moment()
    completed_at = _moment()
    failed_at = _moment()
    expired_at = _moment()
    cancelling_at = _moment()
    cancelled_at = _moment()
    request_counts = fields.Nested(JobCountsSchema, required=True)
    metadata = AnyOf({"type": ["object", "null"], "additionalProperties": {"type": "string"}}, required=True,
                     allow_none=True)


class DeletedSchema(AnswerSchema):
    """Something is erased."""

    id = StrictString(required=True)
    object = StrictString(required=True)
    deleted = fields.Boolean(required=True)


JobListSchema = AnswerSchema.from_dict(_page_of(JobAnswerSchema), name="JobListSchema")
ShardListSchema = AnswerSchema.from_dict(_page_of(ShardSchema), name="ShardListSchema")
FileListSchema = AnswerSchema.from_dict(_page_of(FileSchema), name="FileListSchema")
BatchListSchema = AnswerSchema.from_dict(_page_of(BatchAnswerSchema), name="BatchListSchema")
