"""A Triton of the protocol alone, for tests of who loads what when: loads take as long as a test says.

It speaks the real gRPC protocol, so the frontend and the keeper run unchanged against it. What an engine says is tested
with a real one.
"""
from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from model_repository import catalog

TOKENIZER, ENGINE = "_tokenizer", "_engine"


def strings(content: bytes) -> list[str]:
    """The strings of a tensor."""
    return [item.decode() for item in deserialize_bytes_tensor(content).tolist()]


class SmallTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Serves the tokenizers of some models from the start, and their engines once they are loaded."""

    #: The token that a request that is cancelled had generated and not sent.
    UNSENT = 98

    def __init__(self, models: list[str], port: int = 0, **changes: Any) -> None:
        """`changes` are made to the models' cards."""
        cards = catalog.load()
        self.cards = {model: cards[model].card() | changes for model in models}
        self.states = {f"{model}{TOKENIZER}": "READY" for model in models}
        self.loads: list[str] = []
        self.unloads: list[str] = []
        #: Requests that came to an engine which was not loaded, and most that ran at once.
        self.missed, self.most_active, self.active = 0, 0, 0
        self.cancelled: set[str] = set()
        self.load_seconds, self.token_seconds = 0.3, 0.0
        #: What loads fail with, by model; and when the last one did, by the monotonic clock.
        self.broken: dict[str, str] = {}
        self.failed_at = float("-inf")
        self.lock = threading.Lock()
        self.port = port
        self.start()

    def start(self) -> None:
        """Answer."""
        self.server = grpc.server(futures.ThreadPoolExecutor(400))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.server.start()

    def kill(self) -> None:
        """Answer nobody, and forget what was loaded."""
        self.server.stop(0).wait()
        self.states = {name: state for name, state in self.states.items() if name.endswith(TOKENIZER)}

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def state(self, model: str) -> str:
        """Of a model's engine."""
        return self.states.get(model + ENGINE, "")

    # Triton's protocol

    def ServerLive(self, request: Any, context: Any) -> Any:
        return messages.ServerLiveResponse(live=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return messages.ModelReadyResponse(ready=self.states.get(request.name) == "READY")

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        index = messages.RepositoryIndexResponse()
        for name, state in self.states.items():
            index.models.add(name=name, state=state)
        return index

    def ModelConfig(self, request: Any, context: Any) -> Any:
        model = request.name.removesuffix(TOKENIZER)
        if self.states.get(request.name) != "READY":
            context.abort(grpc.StatusCode.NOT_FOUND, f"'{request.name}' is not found")
        answer = messages.ModelConfigResponse()
        answer.config.parameters["card"].string_value = json.dumps(self.cards[model])
        return answer

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        name = request.model_name
        if self.states.get(name) == "READY":
            return messages.RepositoryModelLoadResponse()
        self.states[name] = "LOADING"
        if name.endswith(ENGINE):
            self.loads.append(name.removesuffix(ENGINE))
            time.sleep(self.load_seconds)
        if problem := self.broken.get(name.removesuffix(ENGINE)):
            self.states[name] = "UNAVAILABLE"
            self.failed_at = time.monotonic()
            context.abort(grpc.StatusCode.INTERNAL, f"load failed for model '{name}': {problem}")
        self.states[name] = "READY"
        return messages.RepositoryModelLoadResponse()

    def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        name = request.model_name
        if name.endswith(ENGINE):
            self.unloads.append(name.removesuffix(ENGINE))
            self.states[name] = "UNLOADING"
            time.sleep(self.load_seconds / 2)
        self.states[name] = "UNAVAILABLE"
        return messages.RepositoryModelUnloadResponse()

    def ModelInfer(self, request: Any, context: Any) -> Any:
        """A token for each character, which is its code."""
        if self.states.get(request.model_name) != "READY":
            context.abort(grpc.StatusCode.INTERNAL, f"Stub process '{request.model_name}_0' is not healthy.")
        texts = [request.raw_input_contents[0][4:].decode()]
        ids = [ord(character) for text in texts for character in text]
        answer = messages.ModelInferResponse(model_name=request.model_name)
        for name, values in (("input_ids", ids), ("lengths", [len(text) for text in texts])):
            answer.outputs.add(name=name, datatype="INT32", shape=[len(values)])
            answer.raw_output_contents.append(np.array(values, np.int32).tobytes())
        return answer

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """The letter a, max_tokens times."""
        for request in requests:
            if self.states.get(request.model_name) != "READY":
                self.missed += 1
                yield messages.ModelStreamInferResponse(
                    error_message=f"Request for unknown model: '{request.model_name}' is not found")
                continue
            inputs = {given.name: content for given, content in
                      zip(request.inputs, request.raw_input_contents, strict=True)}
            if "cancel" in inputs:
                for name in strings(inputs["cancel"]):
                    self.end(name)
                continue
            if not inputs["input_ids"]:
                yield messages.ModelStreamInferResponse(error_message="INVALID_ARG: the prompt is empty")
                continue
            sampling = json.loads(inputs["sampling"][4:])
            with self.lock:
                self.active += 1
                self.most_active = max(self.most_active, self.active)
            with suppress(GeneratorExit):
                yield from self._run(request, sampling["max_tokens"], context)
            with self.lock:
                self.active -= 1

    def end(self, request_id: str) -> None:
        """A request that was cancelled."""
        self.cancelled.add(request_id)

    def _run(self, request: Any, tokens: int, context: Any) -> Iterator[Any]:
        for number in range(tokens):
            if self.token_seconds:
                time.sleep(self.token_seconds)
            if not context.is_active():
                return
            if request.id in self.cancelled:
                yield self._answer(request, self.UNSENT)
                yield messages.ModelStreamInferResponse(error_message="CANCELLED: the caller cancelled it")
                return
            yield self._answer(request, 97, last=number == tokens - 1)

    def _answer(self, request: Any, token: int, last: bool = False) -> Any:
        answer = messages.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.parameters["triton_final_response"].bool_param = last
        for name, datatype, content in (
            ("index", "INT32", np.zeros(1, np.int32).tobytes()), ("text", "BYTES", b"\x01\0\0\0a"),
            ("token_ids", "INT32", np.array([token], np.int32).tobytes()),
            *((("finish_reason", "BYTES", b"\x06\0\0\0length"),) if last else ()),
        ):
            answer.outputs.add(name=name, datatype=datatype, shape=[1])
            answer.raw_output_contents.append(content)
        return messages.ModelStreamInferResponse(infer_response=answer)
