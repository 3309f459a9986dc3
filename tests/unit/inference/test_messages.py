"""A large message means what protobuf says that it means, and its tensors are not copied."""
from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from frontend.inference import messages

CONTENTS = st.lists(st.binary(max_size=300), max_size=5)


def stream_message(name: str, contents: list[bytes], final: bool, error: str) -> service_pb2.ModelStreamInferResponse:
    message = service_pb2.ModelStreamInferResponse(error_message=error)
    message.infer_response.id = name
    message.infer_response.parameters["triton_final_response"].bool_param = final
    for number, content in enumerate(contents):
        message.infer_response.outputs.add(name=f"o{number}", datatype="BYTES", shape=[1, len(content)])
        message.infer_response.raw_output_contents.append(content)
    return message


@given(st.text(max_size=200), CONTENTS, st.booleans(), st.text(max_size=200), st.booleans())
def test_taken_apart_it_is_the_message_that_was_sent(
    name: str, contents: list[bytes], final: bool, error: str, large: bool
) -> None:
    padding = [bytes(messages.LARGE)] if large else []
    sent = stream_message(name, contents + padding, final, error)
    got = messages.parse(sent.SerializeToString())
    assert got.error == error
    assert [bytes(content) for content in got.contents] == contents + padding
    del sent.infer_response.raw_output_contents[:], got.response.raw_output_contents[:]
    assert got.response == sent.infer_response


def test_an_empty_message_says_nothing() -> None:
    got = messages.parse(b"")
    assert (got.error, list(got.contents), got.response) == ("", [], service_pb2.ModelInferResponse())


def test_contents_of_a_large_message_are_views_of_it() -> None:
    serialized = stream_message("x", [bytes(32 * 2**20)], True, "").SerializeToString()
    tracemalloc.start()
    try:
        got = messages.parse(serialized)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(got.contents[0], memoryview)
    assert got.contents[0].obj is serialized
    assert most < 2**20


def test_what_is_no_message_of_tritons_is_an_error() -> None:
    with pytest.raises(ValueError, match="wire type 0"):
        messages.parse(b"\x08\x01" + bytes(messages.LARGE))
