"""Reads a message of Triton's stream without copying its tensors.

Protobuf copies a message when it parses it, and each tensor again when it is read: with hundreds of megabytes of
Activations that takes longer than everything else on the way to the client, and three times the memory. So a large
message is taken apart here, by protobuf's wire format (protobuf.dev/programming-guides/encoding), and protobuf parses
all of it but the tensors' contents.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tritonclient.grpc import service_pb2

#: Smaller messages are parsed faster by protobuf alone.
LARGE = 2**20
_LENGTH_DELIMITED = 2
#: The numbers of fields in Triton's protocol: of ModelStreamInferResponse, and of ModelInferResponse.
_INFER_RESPONSE, _RAW_OUTPUT_CONTENTS = 2, 6


@dataclass(frozen=True)
class StreamMessage:
    """One message: an error, or a response and the contents of its outputs."""

    error: str
    response: service_pb2.ModelInferResponse
    contents: Sequence[bytes | memoryview]


def parse(serialized: bytes) -> StreamMessage:
    """Take a serialized ModelStreamInferResponse apart; contents of a large one are views of it."""
    if len(serialized) < LARGE:
        message = service_pb2.ModelStreamInferResponse.FromString(serialized)
        return StreamMessage(message.error_message, message.infer_response, message.infer_response.raw_output_contents)
    contents: list[bytes | memoryview] = []
    outer, inner = bytearray(), bytearray()
    for number, field, value in _fields(memoryview(serialized)):
        if number != _INFER_RESPONSE:
            outer += field
            continue
        for within, part, content in _fields(value):
            if within == _RAW_OUTPUT_CONTENTS:
                contents.append(content)
            else:
                inner += part
    message = service_pb2.ModelStreamInferResponse.FromString(bytes(outer))
    return StreamMessage(message.error_message, service_pb2.ModelInferResponse.FromString(bytes(inner)), contents)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """The fields of a message: its number, all of it, and its value. Triton's messages have only texts and messages."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        if tag & 7 != _LENGTH_DELIMITED:
            raise ValueError(f"Triton's message has field {tag >> 3} of wire type {tag & 7}")
        length, at = _varint(message, at)
        value = message[at : at + length]
        at += length
        yield tag >> 3, message[start:at], value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """An integer in 7 bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
