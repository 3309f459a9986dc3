"""When the answer is a file of Activations, and what such a file can't hold."""
from __future__ import annotations

from dataclasses import replace

import pytest
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from frontend.api.tensor_files import check_plan, check_request, preferred
from frontend.completions.plan import make_plan
from frontend.completions.request import ActivationRequest, CompletionRequest, Sampling
from frontend.errors import InvalidRequest
from frontend.inference import TokenizedPrompt
from tests.unit.completions.test_plan import CARD

ONE = CompletionRequest("m", ("x",), 1, activations=ActivationRequest((0,)))


@pytest.mark.parametrize(("header", "wanted"), [
    ("", False), ("*/*", False), ("application/*", False), ("application/json", False),
    ("application/vnd.safetensors", True), ("Application/Vnd.Safetensors", True),
    ("application/vnd.safetensors, application/json", True), ("application/json, application/vnd.safetensors", True),
    ("application/vnd.safetensors, */*;q=0.1", True), ("application/vnd.safetensors;q=0.5, application/json", False),
    ("application/vnd.safetensors;q=0.5, */*", False), ("application/vnd.safetensors;q=0", False),
    ("application/octet-stream", False),
])
def test_only_a_client_that_names_the_media_type_gets_the_file(header: str, wanted: bool) -> None:
    assert preferred(parse_accept_header(header, MIMEAccept)) is wanted


@pytest.mark.parametrize(("request_", "params"), [
    (replace(ONE, activations=None), ["activations"]),
    (replace(ONE, stream=True), ["stream"]),
    (replace(ONE, prompts=("x", "y")), ["prompt"]),
    (replace(ONE, sampling=Sampling(n=2)), ["n"]),
    (replace(ONE, stream=True, activations=None, prompts=("x", "y"), sampling=Sampling(n=2)),
     ["activations", "stream", "prompt", "n"]),
], ids=lambda value: "")
def test_a_file_is_for_one_choice(request_: CompletionRequest, params: list[str]) -> None:
    check_request(ONE)
    with pytest.raises(InvalidRequest) as caught:
        check_request(request_)
    assert [problem.param for problem in caught.value.details] == params
    assert all("Accept" in problem.message for problem in caught.value.details)


def test_the_metadata_have_no_room_for_whole_vocabularies() -> None:
    card = replace(CARD, vocab_size=128_256)
    prompts = [TokenizedPrompt((1, 2), ())]
    check_plan(make_plan(replace(ONE, sampling=Sampling(logprobs=5)), card, prompts, 100))
    with pytest.raises(InvalidRequest) as caught:
        check_plan(make_plan(replace(ONE, sampling=Sampling(prompt_logprobs=-1)), card, prompts, 100))
    assert caught.value.param == "prompt_logprobs"
