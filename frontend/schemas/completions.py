"""The body of POST /v1/completions: every field, its type, bounds and default, and the rules between fields.

What depends on the model (vocabulary, context, its own caps) is checked later, beside the model.
null means "left out" for the fields that OpenAI's specification of the route marks nullable, and is a wrong type for
every other field, vLLM's included.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import fields as fields_of
from typing import Any

import orjson
from marshmallow import ValidationError

from frontend.completions.request import ActivationRequest, CompletionRequest, Sampling
from frontend.errors import InvalidRequest, Problem
from frontend.schemas.activations import ActivationsSchema
from frontend.schemas.checks import StrictNested, StrictSchema, check
from frontend.schemas.fields import (
    KeptString,
    LogitBias,
    Prompts,
    StrictBoolean,
    StrictInteger,
    StrictNumber,
    StrictString,
    Strings,
    TokenIds,
)
from frontend.schemas.json_body import parse_object

#: Below this the engine would silently raise the temperature.
LOWEST_TEMPERATURE = 0.01

#: Bodies without their prompts that a CompletionChecker remembers.
_MOST_KNOWN = 1000

_DEFAULTS = Sampling()


def _check_words(words: tuple[str, ...]) -> None:
    """White space in front of a word does not count, so there must be something behind it."""
    for place, word in enumerate(words):
        if not word.strip():
            raise ValidationError(f"must hold words, and bad_words[{place}] is only white space.")


class StreamOptionsSchema(StrictSchema):
    """`stream_options`."""

    include_usage = StrictBoolean(
        load_default=False, metadata={"description": "End the stream with a chunk that carries the usage."}
    )


class CompletionSchema(StrictSchema):
    """One body of POST /v1/completions."""

    model = StrictString(1, required=True, metadata={"description": "An id of GET /v1/models."})
    prompt = Prompts(required=True, metadata={
        "description": "A text, several texts, the token ids of one prompt, or the token ids of several."})
    max_tokens = StrictInteger(1, allow_none=True, load_default=None, metadata={
        "description": "The most tokens of each choice. Required with several prompts or n > 1."})
    temperature = StrictNumber(0, 2, allow_none=True, load_default=_DEFAULTS.temperature, metadata={
        "description": f"0 takes the likeliest token. Values between 0 and {LOWEST_TEMPERATURE} are refused.",
        "anyOf": [{"maximum": 0}, {"minimum": LOWEST_TEMPERATURE}, {"type": "null"}]})
    top_p = StrictNumber(above=0, high=1, allow_none=True, load_default=_DEFAULTS.top_p)
    top_k = StrictInteger(-1, load_default=_DEFAULTS.top_k, metadata={"description": "0 and -1 switch it off."})
    min_p = StrictNumber(0, 1, load_default=_DEFAULTS.min_p)
    presence_penalty = StrictNumber(-2, 2, allow_none=True, load_default=_DEFAULTS.presence_penalty)
    frequency_penalty = StrictNumber(-2, 2, allow_none=True, load_default=_DEFAULTS.frequency_penalty)
    repetition_penalty = StrictNumber(above=0, high=2, load_default=_DEFAULTS.repetition_penalty)
    n = StrictInteger(1, 128, allow_none=True, load_default=_DEFAULTS.n, metadata={
        "description": "Choices for each prompt. More than 1 is refused with temperature 0."})
    stop = Strings(4, lone=True, allow_none=True, load_default=tuple, metadata={
        "description": "Texts at which a completion ends; they are not part of it."})
    stop_token_ids = TokenIds(load_default=tuple)
    seed = StrictInteger(0, allow_none=True, load_default=None)
    logprobs = StrictInteger(-1, 100, allow_none=True, load_default=None, metadata={
        "description": "The likeliest tokens to report at each position; -1 is the whole vocabulary."})
    prompt_logprobs = StrictInteger(-1, 100, load_default=None, allow_none=False, metadata={
        "description": "As logprobs, for the prompt's own tokens."})
    logit_bias = LogitBias(allow_none=True, load_default=tuple)
    allowed_token_ids = TokenIds(1, load_default=None, allow_none=False)
    bad_words = Strings(64, load_default=tuple, validate=_check_words)
    min_tokens = StrictInteger(0, load_default=_DEFAULTS.min_tokens)
    ignore_eos = StrictBoolean(load_default=_DEFAULTS.ignore_eos)
    include_stop_str_in_output = StrictBoolean(load_default=_DEFAULTS.include_stop_str_in_output)
    skip_special_tokens = StrictBoolean(load_default=_DEFAULTS.skip_special_tokens)
    spaces_between_special_tokens = StrictBoolean(load_default=_DEFAULTS.spaces_between_special_tokens)
    add_special_tokens = StrictBoolean(load_default=True, metadata={
        "description": "Text prompts only: false tokenizes the text as it is, without BOS."})
    echo = StrictBoolean(allow_none=True, load_default=False, metadata={
        "description": "Put the prompt in front of the completion."})
    stream = StrictBoolean(allow_none=True, load_default=False, metadata={
        "description": "Answer with server-sent events."})
    stream_options = StrictNested(StreamOptionsSchema, allow_none=True, load_default=None, metadata={
        "description": "Only with stream: true."})
    return_token_ids = StrictBoolean(load_default=False)
    return_tokens_as_token_ids = StrictBoolean(load_default=False, metadata={
        "description": "Write the tokens of logprobs as token_id:N."})
    activations = StrictNested(ActivationsSchema, load_default=None, allow_none=False, metadata={
        "description": "Return the residual stream at these Layers and positions with each choice."})
    user = KeptString(0, 256, load_default=None, allow_none=False)


_SCHEMA = CompletionSchema()
_SAMPLING = tuple(field.name for field in fields_of(Sampling))


def load_completion(body: bytes, max_total_tokens: int) -> CompletionRequest:
    """Check the body of POST /v1/completions. Raises BadJson, or InvalidRequest with every problem of it."""
    return check_completion(parse_object(body), max_total_tokens)


def check_completion(data: Mapping[str, Any], max_total_tokens: int) -> CompletionRequest:
    """Check one completion request that is parsed already. Raises InvalidRequest with every problem of it."""
    values, problems = check(_SCHEMA, data)
    problems.extend(_conflicts(values, data, max_total_tokens))
    if problems:
        raise InvalidRequest.of(problems)
    return CompletionRequest(
        model=values["model"],
        prompts=values["prompt"],
        max_tokens=values["max_tokens"],
        sampling=Sampling(**{name: values[name] for name in _SAMPLING}),
        add_special_tokens=values["add_special_tokens"],
        echo=values["echo"],
        stream=values["stream"],
        include_usage=bool(values["stream_options"] and values["stream_options"]["include_usage"]),
        return_token_ids=values["return_token_ids"],
        return_tokens_as_token_ids=values["return_tokens_as_token_ids"],
        activations=ActivationRequest(**values["activations"]) if values["activations"] else None,
        user=values["user"],
    )


class CompletionChecker:
    """Checks many requests that differ by little else than their prompts: what was seen once is not checked again."""

    def __init__(self, max_total_tokens: int) -> None:
        self._max_total_tokens = max_total_tokens
        self._known: dict[bytes, CompletionRequest | list[Problem]] = {}

    def check(self, data: Mapping[str, Any]) -> CompletionRequest:
        """As `check_completion`."""
        prompt = data.get("prompt")
        # Of one prompt, since rules between fields depend on how many there are.
        if not (type(prompt) is str or (type(prompt) is list and prompt and type(prompt[0]) is int)):
            return check_completion(data, self._max_total_tokens)
        try:
            # Not by their values, of which 1, 1.0 and true are equal.
            rest = orjson.dumps({name: value for name, value in data.items() if name != "prompt"})
        except TypeError:  # an integer of more than 64 bits
            return check_completion(data, self._max_total_tokens)
        known = self._known.get(rest)
        if known is None:
            return self._first(rest, data)
        problems = known if isinstance(known, list) else []
        try:
            prompts = _SCHEMA.load_fields["prompt"].deserialize(prompt, "prompt", data)
        except ValidationError as error:
            problems = [Problem(f"prompt {error.messages[0]}", "prompt"), *problems]
        if problems or isinstance(known, list):
            raise InvalidRequest.of(problems)
        request = copy(known)
        object.__setattr__(request, "prompts", prompts)  # frozen, and dataclasses.replace takes ten times as long
        return request

    def _first(self, rest: bytes, data: Mapping[str, Any]) -> CompletionRequest:
        found: CompletionRequest | list[Problem]
        try:
            found = check_completion(data, self._max_total_tokens)
        except InvalidRequest as error:
            found = list(error.details)
            if any(problem.param == "prompt" for problem in found):
                raise
        if len(self._known) < _MOST_KNOWN:
            self._known[rest] = found
        if isinstance(found, list):
            raise InvalidRequest.of(found)
        return found


def _conflicts(values: Mapping[str, Any], data: Mapping[str, Any], max_total_tokens: int) -> Iterator[Problem]:
    """The rules between fields, each applied where all of its fields are right by themselves."""
    temperature, n = values.get("temperature"), values.get("n")
    prompts, max_tokens = values.get("prompt"), values.get("max_tokens")
    if temperature is not None and 0 < temperature < LOWEST_TEMPERATURE:
        yield Problem(f"temperature must be 0 or at least {LOWEST_TEMPERATURE} and at most 2.", "temperature")
    if n is not None and n > 1 and temperature == 0:
        yield Problem("n must be 1 with temperature 0, which gives the same choice each time.", "n")
    if values.get("stream_options") is not None and values.get("stream") is False:
        yield Problem("stream_options is allowed only with stream: true.", "stream_options")
    if n is not None and prompts is not None and "max_tokens" in values:
        choices = len(prompts) * n
        if max_tokens is None and choices > 1:
            yield Problem("max_tokens is required with several prompts or n greater than 1.", "max_tokens")
        if max_tokens is not None and choices * max_tokens > max_total_tokens:
            yield Problem(
                f"max_tokens times the number of choices must be at most {max_total_tokens}, "
                f"and {len(prompts)} (prompts) × {n} (n) × {max_tokens} (max_tokens) is more.",
                "max_tokens",
            )
    min_tokens = values.get("min_tokens")
    if min_tokens is not None and max_tokens is not None and min_tokens > max_tokens:
        yield Problem(f"min_tokens must be at most max_tokens, {max_tokens}.", "min_tokens")
