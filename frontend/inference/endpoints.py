"""The Tritons: a connection to each, which of them serve a model, and which of them are better left alone for now."""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from frontend.errors import ModelNotFound
from frontend.inference import messages
from frontend.inference.faults import is_gone, is_not_loaded, is_unreachable

#: Tensors may be large; and a Triton that comes back is noticed within a second, not gRPC's two minutes. The least
#: pause is also how long a connection may take to open: a fifth of a second was too short for busy machines.
_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
                    ("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 200),
                    ("grpc.min_reconnect_backoff_ms", 1000), ("grpc.max_reconnect_backoff_ms", 1000)]
#: Triton's streaming call.
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
#: Addresses of Tritons that all serve every model, or those of each model id.
Urls = Sequence[str] | Mapping[str, Sequence[str]]
T = TypeVar("T")


class Endpoint:
    """One Triton. `away` says that it did not answer when it was last asked."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.away = False
        self.channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.stream = self.channel.stream_stream(
            _STREAM, service_pb2.ModelInferRequest.SerializeToString, messages.parse)


class Endpoints:
    """All Tritons of a deployment, by model."""

    def __init__(self, urls: Urls) -> None:
        self._for_each = dict(urls) if isinstance(urls, Mapping) else None
        self._for_all = () if isinstance(urls, Mapping) else tuple(urls)
        groups = self._for_each.values() if self._for_each is not None else [self._for_all]
        #: Addresses that serve the same: a deployment works while one of each group answers.
        self.groups = sorted({tuple(group) for group in groups})
        self._endpoints = {address: Endpoint(address) for group in self.groups for address in group}
        self._lock = threading.Lock()
        self._ejected: set[tuple[str, str]] = set()

    def all(self) -> list[Endpoint]:
        """Every Triton."""
        return list(self._endpoints.values())

    def at(self, address: str) -> Endpoint:
        """The Triton of an address."""
        return self._endpoints[address]

    def addresses(self, model: str) -> tuple[str, ...]:
        """Where a model may be served; nowhere if no Triton is meant to."""
        return self._for_all if self._for_each is None else tuple(self._for_each.get(model, ()))

    def of(self, model: str) -> list[Endpoint]:
        """The Tritons that are meant to serve a model, those that are away last. Raises ModelNotFound."""
        found = [self._endpoints[address] for address in self.addresses(model)]
        if not found:
            raise not_found(model)
        return sorted(found, key=lambda endpoint: endpoint.away)

    def ask(self, model: str, question: Callable[[service_pb2_grpc.GRPCInferenceServiceStub], T]) -> T:
        """Ask the Tritons of a model until one can answer. Raises the last one's RpcError, or ModelNotFound."""
        failure: grpc.RpcError | None = None
        for endpoint in self.of(model):
            try:
                answer = question(endpoint.stub)
            except grpc.RpcError as error:
                details = error.details()
                if is_unreachable(error):
                    endpoint.away = True
                elif not (is_gone(details) or is_not_loaded(details)):
                    raise
                failure = error
            else:
                endpoint.away = False
                return answer
        assert failure is not None
        raise failure

    def eject(self, model: str, address: str) -> None:
        """Send no requests for a model there until a probe has found that it answers."""
        with self._lock:
            self._ejected.add((model, address))

    def readmit(self, model: str, address: str) -> None:
        """It answers again."""
        with self._lock:
            self._ejected.discard((model, address))

    def ejected(self) -> list[tuple[str, str]]:
        """Models and the addresses at which they are not to be asked for."""
        with self._lock:
            return list(self._ejected)

    def close(self) -> None:
        """Close every connection; running calls end as cancelled."""
        for endpoint in self._endpoints.values():
            endpoint.channel.close()


def not_found(model: str) -> ModelNotFound:
    """The error for a model that no Triton serves."""
    return ModelNotFound(f"The model {model!r} does not exist. GET /v1/models lists those that do.", "model")
