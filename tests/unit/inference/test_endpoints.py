"""Several Tritons: who is asked, what a failed load says to users, and what counts as enough of them."""
from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from frontend.errors import ModelNotFound
from frontend.inference import Inference, LoadError, Unreachable
from frontend.inference.faults import load_reason
from tests.small_triton import SmallTriton

NOBODY = "127.0.0.1:9"


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    server = SmallTriton(["tiny-llama"])
    server.load_seconds = 0.0
    yield server
    server.kill()


class Failed(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(("code", "details", "reason"), [
    (grpc.StatusCode.INTERNAL, "torch.OutOfMemoryError: CUDA out of memory", "there is not enough memory for it"),
    (grpc.StatusCode.INTERNAL, "No available memory for the cache blocks", "there is not enough memory for it"),
    (grpc.StatusCode.INTERNAL, "OSError: No such file or directory: /x", "a part of its checkpoint is missing"),
    (grpc.StatusCode.INTERNAL, "SafetensorError: Error while deserializing header", "its checkpoint can't be read"),
    (grpc.StatusCode.INTERNAL, "RuntimeError: DefaultCPUAllocator: can't allocate memory: 9 bytes",
     "there is not enough memory for it"),
    (grpc.StatusCode.INTERNAL, "MemoryError: <EMPTY MESSAGE>\n\nAt:\n  utils.py(113): parse_safetensors_file_metadata",
     "its checkpoint can't be read"),
    (grpc.StatusCode.INTERNAL, "RuntimeError: Cannot find any model weights with `/x`",
     "a part of its checkpoint is missing"),
    (grpc.StatusCode.INTERNAL, "Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}",
     "its engine was killed while it started, as happens where memory runs out"),
    (grpc.StatusCode.INTERNAL, "something else at /secret/place", "its engine did not start"),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "", "its engine did not start in time"),
    (grpc.StatusCode.UNAVAILABLE, "Socket closed", "its server stopped answering while it started"),
])
def test_what_a_failed_load_says_to_users(code: grpc.StatusCode, details: str, reason: str) -> None:
    assert load_reason(Failed(code, details)) == reason


def test_the_other_triton_is_asked_where_one_is_away(triton: SmallTriton) -> None:
    inference = Inference([NOBODY, triton.address])
    assert inference.model("tiny-llama").id == "tiny-llama"
    assert [card.id for card in inference.models()] == ["tiny-llama"]
    assert inference.tokenize("tiny-llama", ["ab"], with_texts=False)[0].ids == (97, 98)
    assert inference.states(["tiny-llama"]) == {"tiny-llama": "cold"}
    assert inference.repository.states(["tiny-llama"]) == {"tiny-llama": {NOBODY: "away", triton.address: "cold"}}
    assert inference.ready()
    assert [endpoint.address for endpoint in inference.endpoints.of("tiny-llama")] == [triton.address, NOBODY]


def test_where_none_answers_it_is_said(triton: SmallTriton) -> None:
    inference = Inference([NOBODY])
    for ask in (inference.models, lambda: inference.model("tiny-llama"), lambda: inference.states(["tiny-llama"])):
        with pytest.raises(Unreachable):
            ask()
    assert not inference.ready()


def test_models_are_served_where_they_are_meant_to_be(triton: SmallTriton) -> None:
    other = SmallTriton(["smollm2-135m"])
    inference = Inference({"tiny-llama": [triton.address], "smollm2-135m": [other.address, NOBODY]})
    assert [card.id for card in inference.models()] == ["smollm2-135m", "tiny-llama"]
    assert inference.ready()
    with pytest.raises(ModelNotFound):
        inference.model("llama-8b")
    triton.kill()
    assert not inference.ready()  # nobody is left who serves tiny-llama
    other.kill()


def test_loading_and_unloading_at_one_of_two(triton: SmallTriton) -> None:
    other = SmallTriton(["tiny-llama"])
    inference = Inference([triton.address, other.address])
    inference.repository.load("tiny-llama", other.address, 10)
    assert inference.repository.states(["tiny-llama"])["tiny-llama"] == {triton.address: "cold", other.address: "warm"}
    assert inference.states(["tiny-llama"]) == {"tiny-llama": "warm"}
    assert inference.repository.warm("tiny-llama", other.address)
    assert inference.repository.probe("tiny-llama", other.address)
    assert not inference.repository.probe("tiny-llama", triton.address)
    inference.repository.unload("tiny-llama", other.address, 10)
    assert inference.states(["tiny-llama"]) == {"tiny-llama": "cold"}
    triton.broken["tiny-llama"] = "No such file"
    with pytest.raises(LoadError, match="a part of its checkpoint is missing") as failed:
        inference.repository.load("tiny-llama", triton.address, 10)
    assert not failed.value.unreachable
    other.kill()
