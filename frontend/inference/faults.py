"""gRPC's failures as the errors that the API answers with."""
from __future__ import annotations

from dataclasses import dataclass

import grpc

from frontend.errors import ApiError, DeadlineExceeded, InferenceError, InvalidRequest, ModelUnavailable, Unavailable

#: How Triton words a call to an entry that is not loaded.
_NOT_LOADED = ("is not found", "is not ready", "has no available versions", "is not at ready state")


#: How backends/llama_vllm words that it died while it ran something.
_ENGINE_DIED = "the engine died"
#: And that shared memory, through which large answers go, is full.
_NO_ROOM = ("has no room for", "no shared memory")
#: And that a position was asked for which the completion did not reach: so it will end each time.
_ENDED_EARLY = "but the completion ended at position"


#: What a failed load says, by what it is about. Reasons are for users: no paths, no traces.
_LOAD_REASONS = (
    # What is no safetensors file at all makes vLLM's reader of them run out of memory.
    (("parse_safetensors_file_metadata",), "its checkpoint can't be read"),
    (("out of memory", "outofmemory", "cannot allocate memory", "can't allocate memory", "no available memory",
      "free memory on device", "available kv cache memory", "bad_alloc", "memoryerror"),
     "there is not enough memory for it"),
    (("no such file", "filenotfound", "does not appear to have a file", "cannot find any model weights",
      "is not a local folder", "is not the path to a directory"), "a part of its checkpoint is missing"),
    (("safetensor", "headertoo", "incomplete metadata", "size mismatch", "shape mismatch", "unpickling",
      "jsondecodeerror", "invalid json", "not a valid json"), "its checkpoint can't be read"),
    # How vLLM writes that the system killed a process.
    (("': -9",), "its engine was killed while it started, as happens where memory runs out"),
)


@dataclass
class LoadError(Exception):
    """A load that failed: why, in words for users, and in Triton's; and whether that is because it went away."""

    reason: str
    details: str
    unreachable: bool

    def __str__(self) -> str:
        return f"{self.reason}: {self.details}"


class Unreachable(Unavailable):
    """Nobody answers where the model should be, so nothing has begun."""


class NotWarm(ModelUnavailable):
    """The engine was not there after all, so nothing has begun."""


class BrokeOff(InferenceError):
    """The engine, or its Triton, ended while it ran something."""


#: What says something of an engine and not of a request.
BROKEN = (Unreachable, NotWarm, BrokeOff)


class Cancelled(Exception):
    """The call was cancelled on our side, because its client went away."""


def is_not_loaded(details: str | None) -> bool:
    """Whether Triton's words mean that the model is not loaded, and not that something broke."""
    return any(words in (details or "") for words in _NOT_LOADED)


def is_gone(details: str | None) -> bool:
    """Whether Triton's words mean that the process behind a loaded model was killed."""
    return "is not healthy" in (details or "")


def too_late(model: str) -> DeadlineExceeded:
    """The engine took longer than a request may take."""
    return DeadlineExceeded(f"Inference did not finish the request for {model!r} in time.")


def unreachable() -> Unreachable:
    """What to raise where no Triton answers."""
    return Unreachable("Inference can't be reached now. Try again in a moment.")


def is_unreachable(error: grpc.RpcError) -> bool:
    """Whether a call failed because nobody answers there, and not because of what it asked for."""
    return error.code() == grpc.StatusCode.UNAVAILABLE and not (
        is_not_loaded(error.details()) or is_gone(error.details()))


def load_reason(error: grpc.RpcError) -> str:
    """Why a model could not be started, in words for users."""
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "its engine did not start in time"
    if is_unreachable(error):
        return "its server stopped answering while it started"
    details = (error.details() or "").lower()
    for signs, reason in _LOAD_REASONS:
        if any(sign in details for sign in signs):
            return reason
    return "its engine did not start"


def broke_off(model: str) -> BrokeOff:
    """What to raise for work that had begun, or may have, and that nothing answers for any more."""
    return BrokeOff(f"Inference broke off while it ran {model!r}. Send the request again.")


def api_error(error: grpc.RpcError, model: str, started: bool = False) -> ApiError:
    """What to raise for a failed call about `model`. `started`: whether the engine had answered something before."""
    code, details = error.code(), error.details() or "no details"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return too_late(model)
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(f"Inference refused the request: {details}")
    if code == grpc.StatusCode.UNAVAILABLE and not started:
        return unreachable()
    return stream_error(details, model, started)


def stream_error(details: str, model: str, started: bool = False) -> ApiError:
    """What to raise for an error inside a stream, of which Triton passes on the words alone.

    Those of backends/llama_vllm begin with the name of Triton's error code.
    """
    code, _, words = details.partition(": ")
    if code == "INVALID_ARG":
        return InvalidRequest(f"Inference refused the request: {words}")
    if code == "UNAVAILABLE" and any(reason in words for reason in _NO_ROOM):
        return Unavailable(f"Inference has no memory left for this request now: {words}. Try again in a moment.")
    if is_not_loaded(details) or (code == "UNAVAILABLE" and not started and _ENGINE_DIED not in words):
        return _not_warm(model)
    if code == "INTERNAL":  # this request alone failed, and sending it again would not always help: the words say
        again = {"x-should-retry": "false"} if _ENDED_EARLY in words else {}
        return InferenceError(f"Inference failed to run {model!r}: {words}", headers=again)
    if started or _ENGINE_DIED in words:
        return broke_off(model)
    if is_gone(details):
        return _not_warm(model)
    return InferenceError(f"Inference failed to run {model!r}: {details}")


def _not_warm(model: str) -> NotWarm:
    return NotWarm(f"The model {model!r} is not Warm, so it can't answer now. Try again in a moment.")
