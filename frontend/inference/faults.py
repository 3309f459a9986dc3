"""gRPC's failures as the errors that the API answers with."""
from __future__ import annotations

import grpc

from frontend.errors import ApiError, DeadlineExceeded, InferenceError, InvalidRequest, ModelUnavailable, Unavailable

#: How Triton words a call to an entry that is not loaded.
_NOT_LOADED = ("is not found", "is not ready", "has no available versions", "is not at ready state")


#: How backends/llama_vllm words that it died while it ran something.
_ENGINE_DIED = "the engine died"
#: And that shared memory, through which large answers go, is full.
_NO_ROOM = ("has no room for", "no shared memory")


class Cancelled(Exception):
    """The call was cancelled on our side, because its client went away."""


def is_not_loaded(details: str | None) -> bool:
    """Whether Triton's words mean that the model is not loaded, and not that something broke."""
    return any(words in (details or "") for words in _NOT_LOADED)


def is_gone(details: str | None) -> bool:
    """Whether Triton's words mean that the process behind a loaded model was killed."""
    return "is not healthy" in (details or "")


def broke_off(model: str) -> InferenceError:
    """What to raise for work that had begun, or may have, and that nothing answers for any more."""
    return InferenceError(f"Inference broke off while it ran {model!r}. Send the request again.")


def api_error(error: grpc.RpcError, model: str, started: bool = False) -> ApiError:
    """What to raise for a failed call about `model`. `started`: whether the engine had answered something before."""
    code, details = error.code(), error.details() or "no details"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"Inference did not finish the request for {model!r} in time.")
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(f"Inference refused the request: {details}")
    if code == grpc.StatusCode.UNAVAILABLE and not started:
        return Unavailable("Inference can't be reached now. Try again in a moment.")
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
        return InferenceError(f"Inference failed to run {model!r}: {words}")
    if started:
        return broke_off(model)
    if is_gone(details):
        return _not_warm(model)
    return InferenceError(f"Inference failed to run {model!r}: {details}")


def _not_warm(model: str) -> ModelUnavailable:
    return ModelUnavailable(f"The model {model!r} is not Warm, so it can't answer now. Try again in a moment.")
