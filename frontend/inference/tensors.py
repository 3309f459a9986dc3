"""Triton's wire format: tensors in and out of the protobuf messages, without copies where numpy allows it.

Format: Triton's gRPC protocol (KServe v2), raw contents; a BYTES tensor is a little-endian uint32 length before each
element.
"""
from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

Value = npt.NDArray[np.int32] | npt.NDArray[np.bool_] | npt.NDArray[np.float32] | Sequence[bytes]
_SENT = {np.dtype(np.bool_): "BOOL", np.dtype(np.int32): "INT32", np.dtype(np.float32): "FP32"}
Tensor = npt.NDArray[np.generic] | list[bytes]

_DTYPES: dict[str, np.dtype[np.generic]] = {
    "INT32": np.dtype("<i4"), "FP32": np.dtype("<f4"), "FP16": np.dtype("<f2"), "BOOL": np.dtype("?"),
    "BF16": np.dtype("V2"),  # numpy has no bfloat16: two bytes that nobody here computes with
}


def infer_request(
    model: str, inputs: Mapping[str, Value], outputs: Sequence[str] = (), request_id: str = ""
) -> service_pb2.ModelInferRequest:
    """A request for `model`. `outputs` names what to compute; none named means all."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            datatype = _SENT[value.dtype]
            shape, content = value.shape, value.tobytes()
        else:
            datatype, shape = "BYTES", (len(value),)
            content = b"".join(struct.pack("<I", len(item)) + item for item in value)
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    for name in outputs:
        message.outputs.add(name=name)
    return message


def read_outputs(
    response: service_pb2.ModelInferResponse, contents: Sequence[bytes | memoryview] | None = None
) -> dict[str, Tensor]:
    """The tensors that a response carries, by name; numeric ones are read-only views of the message's bytes.

    `contents` are those of the outputs where the response does not hold them itself.
    """
    tensors: dict[str, Tensor] = {}
    for output, content in zip(response.outputs, response.raw_output_contents if contents is None else contents,
                               strict=True):
        if output.datatype == "BYTES":
            tensors[output.name] = _split_bytes(content)
        else:
            tensors[output.name] = np.frombuffer(content, _DTYPES[output.datatype]).reshape(tuple(output.shape))
    return tensors


def ints(tensor: Tensor) -> tuple[int, ...]:
    """The numbers of an INT32 tensor."""
    return tuple(cast("npt.NDArray[np.int32]", tensor).tolist())


def strings(tensor: Tensor) -> tuple[str, ...]:
    """The texts of a BYTES tensor."""
    return tuple(item.decode() for item in cast("list[bytes]", tensor))


def _split_bytes(content: bytes | memoryview) -> list[bytes]:
    items, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        at += 4
        items.append(bytes(content[at : at + length]))
        at += length
    return items
