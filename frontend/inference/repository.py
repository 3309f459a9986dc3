"""What each Triton has loaded, asked of Triton itself; loading and unloading, which the keeper alone does."""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from frontend.inference.endpoints import Endpoints
from frontend.inference.engine import engine_request
from frontend.inference.entries import ENGINE, TOKENIZER
from frontend.inference.events import Generation
from frontend.inference.faults import LoadError, api_error, is_gone, is_not_loaded, is_unreachable, load_reason
from frontend.inference.tensors import infer_request

#: Seconds for a call that only asks Triton something, which takes it milliseconds.
QUICK = 10.0
#: Seconds in which every Triton says what it has loaded, or counts as away.
LOOK = 2.0
#: Seconds that a probe of one token may take.
PROBE = 5.0
#: Of a model's engine at one Triton. `away`: the Triton does not answer.
State = Literal["warm", "loading", "unloading", "cold", "away"]
_STATES: Mapping[str, State] = {"READY": "warm", "LOADING": "loading", "UNLOADING": "unloading"}


class Repository:
    """The entries of every Triton. Threads may share one."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def states(self, models: Collection[str]) -> dict[str, dict[str, State]]:
        """The state of each model at each of its Tritons, which are asked all at once."""
        indices = self._indices()
        found: dict[str, dict[str, State]] = {}
        for model in models:
            found[model] = {}
            for address in self._endpoints.addresses(model):
                index = indices[address]
                found[model][address] = "away" if index is None else _STATES.get(index.get(model + ENGINE, ""), "cold")
        return found

    def answering(self) -> dict[str, bool]:
        """Whether each Triton answers, by its address; all are asked at once."""
        return {address: index is not None for address, index in self._indices().items()}

    def served(self) -> list[str] | None:
        """The models whose tokenizers are loaded where they are meant to be; None where no Triton answers."""
        indices = self._indices()
        if all(index is None for index in indices.values()):
            return None
        names = {name.removesuffix(TOKENIZER) for index in indices.values() if index for name, state in index.items()
                 if name.endswith(TOKENIZER) and state == "READY"}
        return sorted(model for model in names if any(
            (indices[address] or {}).get(model + TOKENIZER) == "READY"
            for address in self._endpoints.addresses(model)))

    def warm(self, model: str, address: str) -> bool:
        """Whether a Triton has a model's engine loaded now."""
        question = service_pb2.ModelReadyRequest(name=model + ENGINE)
        endpoint = self._endpoints.at(address)
        try:
            return bool(endpoint.stub.ModelReady(question, timeout=LOOK).ready)
        except grpc.RpcError as error:
            endpoint.away = endpoint.away or is_unreachable(error)
            return False

    def probe(self, model: str, address: str) -> bool:
        """Whether an engine answers a request of one token, and how it is meant to."""
        generation = Generation((0,), b'{"max_tokens": 1, "temperature": 0}', stream=False)
        question = engine_request(model + ENGINE, "probe", generation)
        try:
            answers = list(self._endpoints.at(address).stub.ModelStreamInfer(iter([question]), timeout=PROBE))
        except grpc.RpcError:
            return False
        return bool(answers) and not any(answer.error_message for answer in answers)

    def alive(self, model: str, address: str) -> bool:
        """Whether there is a process behind a model's engine: one that is killed stays Warm in Triton's eyes.

        A Triton that can't be reached says nothing about it, and it counts as alive.
        """
        question = infer_request(model + ENGINE, {"input_ids": np.array([], np.int32)})  # any engine refuses this
        try:
            answers = list(self._endpoints.at(address).stub.ModelStreamInfer(iter([question]), timeout=QUICK))
        except grpc.RpcError:
            return True
        errors = [answer.error_message for answer in answers]
        return not any(is_gone(error) or is_not_loaded(error) for error in errors)

    def tokenizer_alive(self, model: str, address: str) -> bool:
        """As `alive`, for the process of a model's tokenizer."""
        question = infer_request(model + TOKENIZER, {"text_input": [b""]}, ["lengths"])
        try:
            self._endpoints.at(address).stub.ModelInfer(question, timeout=QUICK)
        except grpc.RpcError as error:
            return not is_gone(error.details())
        return True

    def restart_tokenizer(self, model: str, address: str, timeout: float) -> None:
        """Give a model's tokenizer a new process. For the seconds that it takes, that Triton does not know the model.
        """
        self._unload((model + TOKENIZER,), model, address, timeout)
        stub = self._endpoints.at(address).stub
        try:
            stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=model + TOKENIZER),
                                     timeout=timeout)
        except grpc.RpcError as error:
            raise api_error(error, model) from error

    def load(self, model: str, address: str, timeout: float) -> None:
        """Make a model Warm: its engine, then the ensemble that Triton clients use. Seconds to minutes.

        Triton leaves alone what it has already. Raises LoadError, whose reason is fit for users.
        """
        stub = self._endpoints.at(address).stub
        try:
            for entry in (model + ENGINE, model):
                stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=entry), timeout=timeout)
        except grpc.RpcError as error:
            raise LoadError(load_reason(error), error.details() or str(error.code()), is_unreachable(error)) from error

    def unload(self, model: str, address: str, timeout: float) -> None:
        """Make a model Cold: from now on Triton gives it no requests, and it goes once those that run have ended."""
        self._unload((model, model + ENGINE), model, address, timeout)

    def live(self) -> bool:
        """Whether of the Tritons that serve the same one answers. Readiness is not asked for: it says no while any
        model loads."""
        calls = {endpoint.address: endpoint.stub.ServerLive.future(service_pb2.ServerLiveRequest(), timeout=LOOK)
                 for endpoint in self._endpoints.all()}

        def answers(address: str) -> bool:
            try:
                return bool(calls[address].result().live)
            except grpc.RpcError:
                return False

        return all(any(answers(address) for address in group) for group in self._endpoints.groups)

    def _unload(self, entries: Sequence[str], model: str, address: str, timeout: float) -> None:
        stub = self._endpoints.at(address).stub
        try:
            for entry in entries:
                stub.RepositoryModelUnload(service_pb2.RepositoryModelUnloadRequest(model_name=entry), timeout=timeout)
        except grpc.RpcError as error:
            raise api_error(error, model) from error

    def _indices(self) -> dict[str, dict[str, str] | None]:
        """Each Triton's entries and their states; None for one that does not answer."""
        calls = {endpoint: endpoint.stub.RepositoryIndex.future(service_pb2.RepositoryIndexRequest(), timeout=LOOK)
                 for endpoint in self._endpoints.all()}
        found: dict[str, dict[str, str] | None] = {}
        for endpoint, call in calls.items():
            try:
                found[endpoint.address] = {entry.name: entry.state for entry in call.result().models}
                endpoint.away = False
            except grpc.RpcError:
                found[endpoint.address] = None
                endpoint.away = True
        return found
