"""Internal tooling speaks to Triton alone: text or ids in, text, ids and log probabilities out."""
from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.stack import Stack


def ask(client: triton.InferenceServerClient, entry: str, request_id: str, **inputs: np.ndarray) -> None:
    """Send a request on a client's open stream."""
    tensors = []
    for name, value in inputs.items():
        tensor = triton.InferInput(name, list(value.shape), {"O": "BYTES", "i": "INT32", "b": "BOOL"}[value.dtype.kind])
        tensor.set_data_from_numpy(value)
        tensors.append(tensor)
    client.async_stream_infer(entry, tensors, request_id=request_id, enable_empty_final_response=True)


def infer(stack: Stack, stream: bool, model: str = "tiny-llama", **inputs: Any) -> Iterator[triton.InferResult]:
    """The responses of one request to an entry of Triton."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(stack.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        ask(client, model, "", **inputs, stream=np.array([stream]))
        while True:
            result, error = answers.get(timeout=60)
            if error is not None:
                raise error
            response = result.get_response()
            if response.outputs:
                yield result
            if response.parameters["triton_final_response"].bool_param:
                break
        client.stop_stream(cancel_requests=True)


def text(value: str) -> np.ndarray:
    return np.array([value.encode()], dtype=object)


def sampling(**fields: Any) -> np.ndarray:
    return text(json.dumps(fields))


@pytest.mark.parametrize("stream", [False, True])
def test_text_in_and_text_out(stack: Stack, stream: bool) -> None:
    results = list(infer(stack, stream, "smollm2-135m", text_input=text("The capital of France is"),
                         sampling=sampling(max_tokens=4, temperature=0)))
    joined = b"".join(part for r in results if (out := r.as_numpy("text")) is not None for part in out)
    assert joined.decode().startswith(" Paris")
    assert len(results) > 1 if stream else len(results) == 1
    assert results[-1].as_numpy("finish_reason").tolist() == [b"length"]


def test_ids_and_text_are_the_same_prompt(stack: Stack) -> None:
    fields = sampling(max_tokens=4, temperature=0, logprobs=2)
    (by_text,) = infer(stack, False, text_input=text("The sky is"), sampling=fields)
    (by_ids,) = infer(stack, False, input_ids=np.array([128000, 791, 13180, 374], np.int32), sampling=fields)
    assert by_text.as_numpy("token_ids").tolist() == by_ids.as_numpy("token_ids").tolist()
    assert by_text.as_numpy("logprobs").shape == (4, 3)
    assert np.allclose(by_text.as_numpy("logprobs"), by_ids.as_numpy("logprobs"), atol=1e-4)


@pytest.mark.parametrize("fields", [
    {"temprature": 1}, {"temperature": "1"}, {"max_tokens": 0}, {"max_tokens": 5000}, {"n": 2, "temperature": 0},
    {"stop": [""]}, {"stop_token_ids": [128256]}, {"best_of": 2}])
def test_the_engine_is_as_strict_as_the_api(stack: Stack, fields: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="(?i)" + next(iter(fields))[:5]):
        list(infer(stack, False, text_input=text("x"), sampling=sampling(**fields)))
    assert list(infer(stack, False, text_input=text("x"), sampling=sampling(max_tokens=1)))


@pytest.mark.parametrize("entry", ["tiny-llama_engine", "tiny-llama"])
def test_a_request_is_cancelled_by_its_id(stack: Stack, entry: str) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    replies: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(stack.grpc) as asking, triton.InferenceServerClient(stack.grpc) as cancelling:
        asking.start_stream(lambda result, error: answers.put((result, error)))
        ask(asking, entry, "long", input_ids=np.array([5, 6, 7], np.int32), stream=np.array([True]),
            sampling=sampling(max_tokens=2000, ignore_eos=True))
        assert answers.get(timeout=60)[1] is None
        cancelling.start_stream(lambda result, error: replies.put((result, error)))
        ask(cancelling, "tiny-llama_engine", "", cancel=np.array([b"nobody's", b"long"], dtype=object))
        result, error = replies.get(timeout=10)
        assert error is None
        assert result.get_response().parameters["triton_final_response"].bool_param
        parts = 0
        while error is None:
            result, error = answers.get(timeout=10)
            parts += 1
        assert "CANCELLED" in str(error)
        assert parts < 500
        asking.stop_stream()
        cancelling.stop_stream()


def test_an_engine_wants_a_prompt(stack: Stack) -> None:
    with pytest.raises(Exception, match="input_ids is missing"):
        list(infer(stack, False, "tiny-llama_engine", sampling=sampling(max_tokens=1)))
    assert list(infer(stack, False, text_input=text("x"), sampling=sampling(max_tokens=1)))
