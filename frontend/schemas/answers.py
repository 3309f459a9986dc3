"""The shapes of answers, for `/openapi.json` and for tests that load real answers with them."""
from __future__ import annotations

from typing import Any

from marshmallow import RAISE, Schema, fields, validate

from frontend.completions.request import ALL, DTYPE_BYTES, NAMED_LAYERS
from frontend.schemas.fields import AnyOf, StrictInteger, StrictString

_NULL = {"type": "null"}
_LOGPROB = {"type": "number", "maximum": 0}
_RANKED = {
    "type": "object",
    "properties": {
        "logprob": _LOGPROB, "rank": {"type": "integer", "minimum": 1}, "decoded_token": {"type": "string"},
    },
    "required": ["logprob", "rank", "decoded_token"],
    "additionalProperties": False,
}


_LAYERS = {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": list(NAMED_LAYERS)}]}}
_COUNTS = {"type": "array", "items": {"type": "integer", "minimum": 0}}


class AnswerSchema(Schema):
    """An object of an answer: nothing beyond its fields."""

    class Meta:
        """marshmallow's options."""

        unknown = RAISE


def _list(items: dict[str, Any], **kwargs: Any) -> AnyOf:
    return AnyOf({"type": "array", "items": items}, **kwargs)


def _constant(value: str) -> fields.String:
    return fields.String(required=True, validate=validate.Equal(value))


class ProblemSchema(AnswerSchema):
    """One thing that is wrong with a request."""

    param = StrictString(required=True, allow_none=True)
    message = StrictString(required=True)


class ErrorBodySchema(AnswerSchema):
    """What is wrong, in OpenAI's shape."""

    message = StrictString(required=True)
    type = StrictString(required=True)
    param = StrictString(required=True, allow_none=True)
    code = StrictString(required=True)
    details = fields.List(fields.Nested(ProblemSchema), metadata={"description": "Every problem of the request."})


class ErrorSchema(AnswerSchema):
    """The body of every answer that is not a 2xx."""

    error = fields.Nested(ErrorBodySchema, required=True)


class ActivationCapabilitiesSchema(AnswerSchema):
    """Which Activations a model gives, and how many bytes of them one answer holds at most."""

    layers = AnyOf({"anyOf": [{"const": ALL}, _LAYERS]}, required=True, metadata={
        "description": "all is every Layer index, embedding and final_norm."})
    dtypes = _list({"enum": list(DTYPE_BYTES)}, required=True)
    max_bytes = StrictInteger(0, required=True)


class CapabilitiesSchema(AnswerSchema):
    """What can be asked of a model."""

    max_model_len = StrictInteger(1, required=True)
    vocab_size = StrictInteger(1, required=True)
    n_layers = StrictInteger(1, required=True)
    hidden_size = StrictInteger(1, required=True)
    max_logprobs = StrictInteger(0, required=True)
    full_vocab_max_prompt_tokens = StrictInteger(0, required=True)
    full_vocab_max_completion_tokens = StrictInteger(0, required=True)
    bos_token = StrictString(required=True, allow_none=True)
    activations = fields.Nested(ActivationCapabilitiesSchema, required=True)


class ModelSchema(AnswerSchema):
    """A served model."""

    id = StrictString(1, required=True)
    object = _constant("model")
    created = StrictInteger(required=True)
    owned_by = StrictString(required=True)
    checkpoint = StrictString(required=True)
    revision = StrictString(required=True)
    fingerprint = StrictString(required=True)
    state = fields.String(required=True, validate=validate.OneOf(("cold", "loading", "warm")))
    estimated_seconds_to_warm = fields.Float(required=True, allow_none=True)
    gpu_shape = StrictString(required=True)
    capabilities = fields.Nested(CapabilitiesSchema, required=True)


class ModelListSchema(AnswerSchema):
    """Every served model."""

    object = _constant("list")
    data = fields.List(fields.Nested(ModelSchema), required=True)


class TokenizedSchema(AnswerSchema):
    """The tokens of a text."""

    model = StrictString(required=True)
    count = StrictInteger(required=True)
    max_model_len = StrictInteger(1, required=True)
    tokens = _list({"type": "integer", "minimum": 0}, required=True)
    token_strs = _list({"type": "string"}, required=True, metadata={
        "description": "The text that each token adds: joined, the prompt."})


class DetokenizedSchema(AnswerSchema):
    """The text of tokens."""

    model = StrictString(required=True)
    prompt = StrictString(required=True)
    token_strs = _list({"type": "string"}, required=True)


class LogprobsSchema(AnswerSchema):
    """OpenAI's legacy logprobs; -9999.0 stands for minus infinity."""

    tokens = _list({"type": "string"}, required=True)
    token_logprobs = _list({"anyOf": [_LOGPROB, _NULL]}, required=True)
    top_logprobs = _list(
        {"anyOf": [{"type": "object", "additionalProperties": _LOGPROB}, _NULL]}, required=True)
    text_offset = _list({"type": "integer", "minimum": 0}, required=True)


class ChoiceActivationsSchema(AnswerSchema):
    """Activations of one choice. Once decoded, `data` is a safetensors file whose one tensor is named activations."""

    layers = AnyOf(_LAYERS, required=True, metadata={"description": "Those of the first axis."})
    positions = AnyOf(_COUNTS, required=True, metadata={
        "description": "Those of the second axis: the first, and the one after the last, where they were asked for by "
                       "a word; each of them where a list asked for them."})
    shape = AnyOf({**_COUNTS, "minItems": 3, "maxItems": 3}, required=True, metadata={
        "description": "Layers, positions, and the numbers of each."})
    dtype = fields.String(required=True, validate=validate.OneOf(tuple(DTYPE_BYTES)))
    format = _constant("safetensors")
    encoding = _constant("base64")
    data = AnyOf({"type": "string", "contentEncoding": "base64"}, required=True)


class ChoiceSchema(AnswerSchema):
    """One completion of one prompt."""

    index = StrictInteger(required=True)
    text = StrictString(required=True)
    finish_reason = fields.String(required=True, allow_none=True, validate=validate.OneOf(("stop", "length")))
    stop_reason = AnyOf({"anyOf": [{"type": "string"}, {"type": "integer"}, _NULL]}, required=True, allow_none=True)
    logprobs = fields.Nested(LogprobsSchema, required=True, allow_none=True)
    prompt_logprobs = _list({"anyOf": [{"type": "object", "additionalProperties": _RANKED}, _NULL]})
    prompt_token_ids = _list({"type": "integer", "minimum": 0})
    token_ids = _list({"type": "integer", "minimum": 0})
    activations = fields.Nested(ChoiceActivationsSchema, metadata={"description": "In a stream, in the last event."})


class UsageSchema(AnswerSchema):
    """Tokens: a prompt once, completions over all choices."""

    prompt_tokens = StrictInteger(required=True)
    completion_tokens = StrictInteger(required=True)
    total_tokens = StrictInteger(required=True)


class CompletionAnswerSchema(AnswerSchema):
    """The answer of POST /v1/completions."""

    id = StrictString(required=True)
    object = _constant("text_completion")
    created = StrictInteger(required=True)
    model = StrictString(required=True)
    system_fingerprint = StrictString(required=True)
    choices = fields.List(fields.Nested(ChoiceSchema), required=True)
    usage = fields.Nested(UsageSchema, required=True)


class CompletionChunkSchema(CompletionAnswerSchema):
    """The data of one event of a streamed answer. `usage` is there only with stream_options.include_usage."""

    usage = fields.Nested(UsageSchema, allow_none=True)


class BalanceSchema(AnswerSchema):
    """An account's tokens: granted = available + held + charged."""

    granted = StrictInteger(0, required=True)
    available = StrictInteger(0, required=True)
    held = StrictInteger(0, required=True)
    charged = StrictInteger(0, required=True)


class DayUsageSchema(AnswerSchema):
    """One day of one model. A request that failed before its answer counts as one and is not charged."""

    day = fields.String(required=True, metadata={"format": "date"})
    model = StrictString(required=True)
    requests = StrictInteger(1, required=True)
    prompt_tokens = StrictInteger(0, required=True)
    completion_tokens = StrictInteger(0, required=True)
    total_tokens = StrictInteger(0, required=True)
    charged = StrictInteger(0, required=True)


class UsageReportSchema(AnswerSchema):
    """The answer of GET /v1/usage."""

    object = _constant("usage")
    tokens = fields.Nested(BalanceSchema, required=True)
    days = fields.List(fields.Nested(DayUsageSchema), required=True)


class HealthSchema(AnswerSchema):
    """This process lives."""

    status = _constant("ok")


class ReadinessSchema(AnswerSchema):
    """Every part that the API needs answers."""

    status = _constant("ready")
    parts = AnyOf({"type": "object", "additionalProperties": {"const": "ok"}}, required=True)
