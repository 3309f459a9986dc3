"""The engine entry of a model: a Generation as its request, its responses as events. The tensors are the catalog's."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from frontend.inference.events import ActivationPart, Capture, EngineEvent, Generation, LogprobRows
from frontend.inference.tensors import Tensor, Value, infer_request, ints, strings

#: What the numbers of Activations are, by numpy's name of the view that `tensors` makes of them.
_ACTIVATION_DTYPES = {"|V2": "bfloat16", "<f2": "float16", "<f4": "float32"}


def engine_request(entry: str, request_id: str, generation: Generation) -> service_pb2.ModelInferRequest:
    """The request that runs one prompt; its last response says that it is the last."""
    inputs: dict[str, Value] = {
        "input_ids": np.array(generation.prompt_ids, np.int32),
        "sampling": [generation.sampling],
        "stream": np.array([generation.stream]),
    }
    if generation.capture is not None:
        inputs |= _capture(generation.capture)
    message = infer_request(entry, inputs, request_id=request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def cancel_request(entry: str, request_ids: Sequence[str]) -> service_pb2.ModelInferRequest:
    """The request that ends others. It has no response, except where it fails."""
    return infer_request(entry, {"cancel": [request_id.encode() for request_id in request_ids]})


def engine_event(prompt: int, outputs: dict[str, Tensor]) -> EngineEvent:
    """What one response says of prompt number `prompt`."""
    text, finish, stop = (cast("list[bytes] | None", outputs.get(name))
                          for name in ("text", "finish_reason", "stop_reason"))
    return EngineEvent(
        prompt=prompt,
        index=ints(outputs["index"])[0],
        text=text[0].decode() if text else "",
        token_ids=ints(outputs["token_ids"]) if "token_ids" in outputs else (),
        token_texts=strings(outputs["token_texts"]) if "token_texts" in outputs else (),
        logprobs=_rows(outputs, ""),
        prompt_logprobs=_rows(outputs, "prompt_"),
        finish_reason=finish[0].decode() if finish else None,
        stop_reason=json.loads(stop[0]) if stop else None,
        activations=_activations(outputs) if "activations" in outputs else None,
    )


def _capture(capture: Capture) -> dict[str, Value]:
    positions = (capture.positions,) if isinstance(capture.positions, str) else capture.positions
    return {
        "activation_layers": [str(layer).encode() for layer in capture.layers],
        "activation_positions": [str(position).encode() for position in positions],
        "activation_dtype": [capture.dtype.encode()],
    }


def _rows(outputs: dict[str, Tensor], prefix: str) -> LogprobRows | None:
    values = outputs.get(prefix + "logprobs")
    if values is None:
        return None
    return LogprobRows(
        cast("npt.NDArray[np.int32] | None", outputs.get(prefix + "logprob_ids")),
        cast("npt.NDArray[np.float32]", values),
        cast("npt.NDArray[np.int32]", outputs[prefix + "logprob_ranks"]),
    )


def _activations(outputs: dict[str, Tensor]) -> ActivationPart:
    values = cast("npt.NDArray[np.generic]", outputs["activations"])
    return ActivationPart(_ACTIVATION_DTYPES[values.dtype.str], values.shape, ints(outputs["activation_rows"]),
                          values.reshape(-1).view(np.uint8).data)
