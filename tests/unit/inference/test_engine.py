"""What goes to Triton for a prompt, and what its responses are as events."""
from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from frontend.errors import ApiError, InferenceError, InvalidRequest, Unavailable
from frontend.inference import Capture, Generation
from frontend.inference.engine import engine_event, engine_request
from frontend.inference.faults import stream_error
from frontend.inference.tensors import read_outputs


def texts(content: bytes) -> list[str]:
    items, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        items.append(content[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return items


def inputs(generation: Generation) -> dict[str, bytes]:
    message = engine_request("m_engine", "req/0", generation)
    return dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))


def response(**tensors: tuple[str, tuple[int, ...], bytes]) -> service_pb2.ModelInferResponse:
    message = service_pb2.ModelInferResponse()
    for name, (datatype, shape, content) in tensors.items():
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_output_contents.append(content)
    return message


def numbers(*values: int) -> tuple[str, tuple[int, ...], bytes]:
    return "INT32", (len(values),), np.array(values, "<i4").tobytes()


def text(value: str) -> tuple[str, tuple[int, ...], bytes]:
    return "BYTES", (1,), struct.pack("<I", len(value.encode())) + value.encode()


def test_a_request_without_activations_says_nothing_of_them() -> None:
    assert set(inputs(Generation((1, 2), b"{}", False))) == {"input_ids", "sampling", "stream"}


def test_a_capture_is_spelled_out() -> None:
    sent = inputs(Generation((1, 2), b"{}", False, Capture((3, "embedding"), (4, 0), "float16")))
    assert texts(sent["activation_layers"]) == ["3", "embedding"]
    assert texts(sent["activation_positions"]) == ["4", "0"]
    assert texts(sent["activation_dtype"]) == ["float16"]
    assert texts(inputs(Generation((1,), b"{}", False, Capture((0,), "last", "float32")))["activation_positions"]) == [
        "last"]


@pytest.mark.parametrize(("datatype", "dtype", "size"), [
    ("BF16", "bfloat16", 2), ("FP16", "float16", 2), ("FP32", "float32", 4)])
@pytest.mark.parametrize("rows", [3, 0])
def test_activations_come_as_they_are(datatype: str, dtype: str, size: int, rows: int) -> None:
    content = bytes(range(2 * rows * 4 * size))
    event = engine_event(7, read_outputs(response(
        index=numbers(1), finish_reason=text("stop"), stop_reason=text(json.dumps("x")), token_ids=numbers(5),
        activations=(datatype, (2, rows, 4), content), activation_rows=numbers(*range(rows)))))
    assert (event.prompt, event.index, event.finish_reason, event.stop_reason) == (7, 1, "stop", "x")
    activations = event.activations
    assert activations is not None
    assert (activations.dtype, activations.shape, activations.positions) == (dtype, (2, rows, 4), tuple(range(rows)))
    assert activations.data == content
    assert activations.data.nbytes == len(content)


def test_an_event_without_activations_has_none() -> None:
    assert engine_event(0, read_outputs(response(index=numbers(0), text=text("a")))).activations is None


@pytest.mark.parametrize("started", [False, True])
def test_a_request_that_fails_alone_says_why_in_the_engines_words(started: bool) -> None:
    words = "position 9 was asked for, but the completion ended at position 4"
    error = stream_error(f"INTERNAL: {words}", "m", started)
    assert isinstance(error, InferenceError)
    assert error.message.endswith(words)
    assert (error.status, error.code) == (502, "inference_error")


@pytest.mark.parametrize(("details", "started", "kind", "status", "code"), [
    ("INVALID_ARG: too large", False, InvalidRequest, 400, "invalid_request"),
    ("UNAVAILABLE: the engine died: x", True, ApiError, 502, "inference_error"),
    ("UNAVAILABLE: the engine is not running", False, ApiError, 503, "model_unavailable"),
    ("Stub process is not healthy.", True, ApiError, 502, "inference_error"),
    ("UNAVAILABLE: /dev/shm has no room for an answer of 9 bytes", False, Unavailable, 503, "unavailable"),
    ("UNAVAILABLE: there is no shared memory for the activations: x", True, Unavailable, 503, "unavailable"),
])
def test_what_the_words_of_a_failure_mean(
    details: str, started: bool, kind: type[ApiError], status: int, code: str
) -> None:
    error = stream_error(details, "m", started)
    assert isinstance(error, kind)
    assert (error.status, error.code) == (status, code)
