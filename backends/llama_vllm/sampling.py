"""The caller's sampling fields, checked strictly: what is unknown, of the wrong type or out of bounds is refused.

The same names, defaults and bounds as the HTTP contract's, so that a Triton client is served no laxer than the API's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

#: Bounds that the contract fixes for every model.
MAX_N = 128
MAX_STOPS = 4
MAX_BAD_WORDS = 64
MAX_BIASES = 1024
MAX_INTEGER = 2**63 - 1
DEFAULT_MAX_TOKENS = 32_000
SMALLEST_TEMPERATURE = 0.01


class InvalidRequest(Exception):
    """The request cannot be served as it was sent; the message is one line for the caller."""


@dataclass(frozen=True)
class Limits:
    """What one engine allows."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    full_vocab_max_prompt_tokens: int
    full_vocab_max_completion_tokens: int


@dataclass(frozen=True)
class Sampling:
    """Every sampling field of a request, defaults filled in. max_tokens 0 stands for "left out"."""

    max_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


def parse_sampling(raw: bytes | None, prompt_ids: npt.NDArray[np.int32], limits: Limits) -> Sampling:
    """The sampling of one request for this prompt, max_tokens settled. raw is a JSON object, None means all defaults.

    Raises InvalidRequest.
    """
    if not len(prompt_ids):
        raise InvalidRequest("the prompt has no tokens")
    outside = np.flatnonzero((prompt_ids < 0) | (prompt_ids >= limits.vocab_size))
    if len(outside):
        place = int(outside[0])
        raise InvalidRequest(
            f"input_ids[{place}] is {int(prompt_ids[place])}, outside the vocabulary of {limits.vocab_size} tokens"
        )
    given = {} if raw is None else _object(raw)
    checks = _checks(limits)
    if unknown := sorted(given.keys() - checks.keys()):
        raise InvalidRequest(f"sampling has an unknown field: {unknown[0]!r}")
    values = {name: checks[name](name, value) for name, value in given.items() if not _left_out(name, value)}
    return _settled(Sampling(**values), len(prompt_ids), limits)


def _settled(sampling: Sampling, prompt_tokens: int, limits: Limits) -> Sampling:
    """The checks that concern several fields or the prompt, and the default of max_tokens."""
    room = limits.max_model_len - prompt_tokens
    max_tokens = sampling.max_tokens
    if not max_tokens:
        if sampling.n > 1:
            raise InvalidRequest("max_tokens must be set when n is greater than 1")
        max_tokens = min(DEFAULT_MAX_TOKENS, room)
    if max_tokens > room or room < 1:
        raise InvalidRequest(
            f"{prompt_tokens} prompt tokens and max_tokens {max_tokens} do not fit the context of "
            f"{limits.max_model_len} tokens"
        )
    if sampling.min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens must be at most max_tokens ({max_tokens})")
    if sampling.n > 1 and sampling.temperature == 0:
        raise InvalidRequest("n must be 1 at temperature 0")
    if sampling.prompt_logprobs == -1 and prompt_tokens > limits.full_vocab_max_prompt_tokens:
        raise InvalidRequest(f"prompt_logprobs -1 allows at most {limits.full_vocab_max_prompt_tokens} prompt tokens")
    if sampling.logprobs == -1 and sampling.n * max_tokens > limits.full_vocab_max_completion_tokens:
        raise InvalidRequest(
            f"logprobs -1 allows at most {limits.full_vocab_max_completion_tokens} tokens over all choices"
        )
    return replace(sampling, max_tokens=max_tokens)


def _object(raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise InvalidRequest("sampling has the same key twice")
        return dict(pairs)

    def no_constant(name: str) -> float:
        raise InvalidRequest(f"sampling holds {name}, which is not JSON")

    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise InvalidRequest("sampling is not valid JSON") from None
    if not isinstance(parsed, dict):
        raise InvalidRequest("sampling must be a JSON object")
    return parsed


def _left_out(name: str, value: object) -> bool:
    """null stands for "left out" only where that is a value of its own."""
    return value is None and name in _NULLABLE


_NULLABLE = {"max_tokens", "seed", "logprobs", "prompt_logprobs", "allowed_token_ids"}

Check = Callable[[str, Any], Any]


def _integer(least: int, most: int | None = None) -> Check:
    def check(name: str, value: Any) -> int:
        if type(value) is not int:
            raise InvalidRequest(f"{name} must be an integer")
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"between {least} and {most}"
            raise InvalidRequest(f"{name} must be {bound}")
        return value

    return check


def _number(least: float, most: float, above: bool = False) -> Check:
    def check(name: str, value: Any) -> float:
        if type(value) not in (int, float):
            raise InvalidRequest(f"{name} must be a number")
        if not least <= value <= most or (above and value == least):
            raise InvalidRequest(f"{name} must be {'above' if above else 'at least'} {least} and at most {most}")
        return float(value)

    return check


def _temperature(name: str, value: Any) -> float:
    temperature: float = _number(0, 2)(name, value)
    if 0 < temperature < SMALLEST_TEMPERATURE:
        # vLLM would raise it to this without a word.
        raise InvalidRequest(f"{name} must be 0 or at least {SMALLEST_TEMPERATURE}")
    return temperature


def _boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidRequest(f"{name} must be true or false")
    return value


def _strings(most: int) -> Check:
    def check(name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise InvalidRequest(f"{name} must be a list of non-empty strings")
        if len(value) > most:
            raise InvalidRequest(f"{name} must have at most {most} entries")
        if not all(map(_encodable, value)):
            raise InvalidRequest(f"{name} holds a lone surrogate, which is no character")
        return tuple(value)

    return check


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ids(vocab_size: int, empty: bool) -> Check:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise InvalidRequest(f"{name} must be a list of integers")
        if not value and not empty:
            raise InvalidRequest(f"{name} must not be empty")
        if outside := [item for item in value if not 0 <= item < vocab_size]:
            raise InvalidRequest(f"{name}: {outside[0]} is outside the vocabulary of {vocab_size} tokens")
        return tuple(value)

    return check


def _biases(vocab_size: int) -> Check:
    bias = _number(-100, 100)

    def check(name: str, value: Any) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict) or len(value) > MAX_BIASES:
            raise InvalidRequest(f"{name} must be an object of at most {MAX_BIASES} token ids")
        for key in value:
            if not key.isascii() or not key.isdigit() or str(int(key[:20])) != key or int(key) >= vocab_size:
                raise InvalidRequest(f"{name}: {key[:40]!r} is not the decimal id of one of {vocab_size} tokens")
        return tuple((int(key), bias(f"{name}[{key}]", item)) for key, item in value.items())

    return check


def _checks(limits: Limits) -> dict[str, Check]:
    penalty, logprobs, vocab_size = _number(-2, 2), _integer(-1, limits.max_logprobs), limits.vocab_size
    return {
        "max_tokens": _integer(1),
        "temperature": _temperature,
        "top_p": _number(0, 1, above=True),
        "top_k": _integer(-1, MAX_INTEGER),
        "min_p": _number(0, 1),
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "repetition_penalty": _number(0, 2, above=True),
        "n": _integer(1, MAX_N),
        "stop": _strings(MAX_STOPS),
        "stop_token_ids": _ids(vocab_size, empty=True),
        "seed": _integer(0, MAX_INTEGER),
        "logprobs": logprobs,
        "prompt_logprobs": logprobs,
        "logit_bias": _biases(vocab_size),
        "allowed_token_ids": _ids(vocab_size, empty=False),
        "bad_words": _strings(MAX_BAD_WORDS),
        "min_tokens": _integer(0),
        "ignore_eos": _boolean,
        "include_stop_str_in_output": _boolean,
        "skip_special_tokens": _boolean,
        "spaces_between_special_tokens": _boolean,
    }
