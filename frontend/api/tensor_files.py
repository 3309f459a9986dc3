"""The answer of POST /v1/completions as a safetensors file: for a client that accepts it, and a single choice."""
from __future__ import annotations

from collections.abc import Iterator

from flask import Response
from werkzeug.datastructures import MIMEAccept

from frontend.completions.plan import Plan
from frontend.completions.request import CompletionRequest
from frontend.completions.tensor_file import TensorFile
from frontend.errors import InvalidRequest, Problem

MEDIA_TYPE = "application/vnd.safetensors"


def preferred(accepted: MIMEAccept) -> bool:
    """Whether a request's Accept header names the media type, and no JSON before it."""
    named = any(value.lower() == MEDIA_TYPE for value, _ in accepted)
    return named and accepted.quality(MEDIA_TYPE) >= max(accepted.quality("application/json"), 0.001)


def check_request(request: CompletionRequest) -> None:
    """Raises InvalidRequest for what one file can't hold."""
    problems = list(_problems(request))
    if problems:
        raise InvalidRequest.of(problems)


def check_plan(plan: Plan) -> None:
    """Raises InvalidRequest where the completion would not fit the metadata, of which readers take 100 MB."""
    if plan.many_logprobs:
        field = "logprobs" if plan.request.sampling.prompt_logprobs is None else "prompt_logprobs"
        raise InvalidRequest(
            f"{MEDIA_TYPE} has no room for so many log probabilities: ask for fewer, or for them alone, or take "
            f"{MEDIA_TYPE} out of the header Accept.", field)


def answer(file: TensorFile) -> Response:
    """The file."""
    headers = {"Content-Length": str(len(file)), "Vary": "Accept"}
    return Response(file.parts(), content_type=MEDIA_TYPE, headers=headers)


def _problems(request: CompletionRequest) -> Iterator[Problem]:
    otherwise = f"or take {MEDIA_TYPE} out of the header Accept."
    if request.activations is None:
        yield Problem(f"{MEDIA_TYPE} is a file of Activations: ask for activations, {otherwise}", "activations")
    if request.stream:
        yield Problem(f"{MEDIA_TYPE} can't be streamed: send stream: false, {otherwise}", "stream")
    if len(request.prompts) > 1:
        yield Problem(f"{MEDIA_TYPE} holds one choice: send one prompt in each request, {otherwise}", "prompt")
    if request.sampling.n > 1:
        yield Problem(f"{MEDIA_TYPE} holds one choice: send n: 1, {otherwise}", "n")
