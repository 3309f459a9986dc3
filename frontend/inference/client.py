"""The client of one or several Tritons: models and their states, tokenizing, generating."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import cast

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from frontend.errors import ModelNotFound, Unavailable
from frontend.inference import messages
from frontend.inference.card import ModelCard
from frontend.inference.engine import engine_event, engine_request
from frontend.inference.events import EngineEvent, Generation, TokenizedPrompt, Vocabulary
from frontend.inference.faults import Cancelled, api_error, broke_off, is_gone, is_not_loaded, stream_error
from frontend.inference.tensors import Tensor, infer_request, ints, read_outputs, strings
from frontend.inference.watch import StreamWatch

#: Seconds for a call that only asks Triton something, which takes it milliseconds.
QUICK = 10.0
#: Seconds for which a model's card is believed before Triton is asked again.
CARD_TTL = 10.0
#: Tensors may be large; and a Triton that comes back is noticed within a second, not gRPC's two minutes. The least
#: pause is also how long a connection may take to open: a fifth of a second was too short for busy machines.
_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
                    ("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 200),
                    ("grpc.min_reconnect_backoff_ms", 1000), ("grpc.max_reconnect_backoff_ms", 1000)]
_TOKENIZER, _ENGINE = "_tokenizer", "_engine"
#: Triton's streaming call.
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Inference:
    """All served models. Threads may share one; a forked process must make its own.

    `urls` is Triton's gRPC address, or one address for each model id.
    """

    def __init__(self, urls: str | Mapping[str, str]) -> None:
        self._urls = urls
        addresses = {urls} if isinstance(urls, str) else set(urls.values())
        self._channels = {address: grpc.insecure_channel(address, _CHANNEL_OPTIONS) for address in addresses}
        self._stubs = {a: service_pb2_grpc.GRPCInferenceServiceStub(c) for a, c in self._channels.items()}
        self._streams = {address: channel.stream_stream(
            _STREAM, service_pb2.ModelInferRequest.SerializeToString, messages.parse)
            for address, channel in self._channels.items()}
        self._lock = threading.Lock()
        self._ending: set[object] = set()
        self._watch = StreamWatch(self.alive)
        self._cards: dict[str, tuple[float, ModelCard]] = {}
        self._vocabularies: dict[str, Vocabulary] = {}
        self._vocabulary_locks: dict[str, threading.Lock] = {}

    def close(self) -> None:
        """Close every connection; running calls end as cancelled."""
        for channel in self._channels.values():
            channel.close()

    # Models and their states

    def models(self) -> list[ModelCard]:
        """The models that can be asked for, Warm or Cold: those whose tokenizer is loaded. Sorted by id."""
        ids = set()
        for address, stub in self._stubs.items():
            for entry in self._index(stub):
                model = entry.name.removesuffix(_TOKENIZER)
                if entry.name.endswith(_TOKENIZER) and entry.state == "READY" and self._address(model) == address:
                    ids.add(model)
        return [self.model(model) for model in sorted(ids)]

    def model(self, model: str) -> ModelCard:
        """The card of one model. Raises ModelNotFound when no Triton serves it."""
        known = self._cards.get(model)
        if known and time.monotonic() - known[0] < CARD_TTL:
            return known[1]
        stub = self._stub(model)
        try:
            config = stub.ModelConfig(service_pb2.ModelConfigRequest(name=model + _TOKENIZER), timeout=QUICK).config
        except grpc.RpcError as error:
            unknown = error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
            if unknown or is_not_loaded(error.details()):
                raise _not_found(model) from None
            raise api_error(error, model) from error
        card = ModelCard.from_json(config.parameters["card"].string_value)
        self._cards[model] = (time.monotonic(), card)
        return card

    def knows(self, model: str) -> bool:
        """Whether a model was ever found to be served; asks nobody."""
        return model in self._cards

    def state(self, model: str) -> str:
        """`warm`, `loading` or `cold`: Triton's own state of the engine, asked for now."""
        return self.states([model])[model]

    def states(self, models: Sequence[str]) -> dict[str, str]:
        """The state of several models, with one question to each Triton."""
        states = {}
        for address, stub in self._stubs.items():
            ours = {model + _ENGINE: model for model in models if self._address(model) == address}
            for entry in self._index(stub) if ours else ():
                if entry.name in ours:
                    states[ours[entry.name]] = {"READY": "warm", "LOADING": "loading"}.get(entry.state, "cold")
        return {model: states.get(model, "cold") for model in models}

    def alive(self, model: str) -> bool:
        """Whether there is a process behind a model's engine: one that is killed stays Warm in Triton's eyes.

        A Triton that can't be reached says nothing about it, and it counts as alive.
        """
        question = infer_request(model + _ENGINE, {"input_ids": np.array([], np.int32)})  # any engine refuses this
        try:
            answers = list(self._stub(model).ModelStreamInfer(iter([question]), timeout=QUICK))
        except grpc.RpcError:
            return True
        errors = [answer.error_message for answer in answers]
        return not any(is_gone(error) or is_not_loaded(error) for error in errors)

    def tokenizer_alive(self, model: str) -> bool:
        """As `alive`, for the process of a model's tokenizer."""
        question = infer_request(model + _TOKENIZER, {"text_input": [b""]}, ["lengths"])
        try:
            self._stub(model).ModelInfer(question, timeout=QUICK)
        except grpc.RpcError as error:
            return not is_gone(error.details())
        return True

    def restart_tokenizer(self, model: str, timeout: float) -> None:
        """Give a model's tokenizer a new process. For the seconds that it takes, the model is not found."""
        stub, name = self._stub(model), model + _TOKENIZER
        try:
            stub.RepositoryModelUnload(service_pb2.RepositoryModelUnloadRequest(model_name=name), timeout=timeout)
            stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=name), timeout=timeout)
        except grpc.RpcError as error:
            raise api_error(error, model) from error

    def ready(self, timeout: float = 2.0) -> bool:
        """Whether every Triton answers. Its own readiness says no while any model loads, so it isn't asked for that."""
        try:
            return all(stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=timeout).live
                       for stub in self._stubs.values())
        except grpc.RpcError:
            return False

    def load(self, model: str, timeout: float) -> None:
        """Make a model Warm: its engine, then the ensemble that Triton clients use. Seconds to minutes."""
        stub = self._stub(model)
        try:
            for entry in (model + _ENGINE, model):
                stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=entry), timeout=timeout)
        except grpc.RpcError as error:
            raise api_error(error, model) from error

    def unload(self, model: str, timeout: float) -> None:
        """Make a model Cold; requests that run on it end with an error."""
        stub = self._stub(model)
        try:
            for entry in (model, model + _ENGINE):
                stub.RepositoryModelUnload(service_pb2.RepositoryModelUnloadRequest(model_name=entry), timeout=timeout)
        except grpc.RpcError as error:
            raise api_error(error, model) from error

    # Tokens

    def tokenize(
        self, model: str, texts: Sequence[str], add_special_tokens: bool = True, with_texts: bool = True,
        timeout: float = QUICK,
    ) -> list[TokenizedPrompt]:
        """The tokens of each text, special tokens added by the model's template unless told not to.

        Without `with_texts` the prompts' `texts` are empty, which spares the wire a string for each token. A text of
        megabytes takes seconds, so the `timeout` is the caller's.
        """
        outputs = self._tokenizer(model, {
            "text_input": [text.encode() for text in texts],
            "add_special_tokens": np.array([add_special_tokens]),
        }, ("input_ids", "lengths", *(("token_texts",) if with_texts else ())), timeout)
        ids = ints(outputs["input_ids"])
        token_texts = strings(outputs["token_texts"]) if with_texts else ()
        prompts, at = [], 0
        for length in ints(outputs["lengths"]):
            prompts.append(TokenizedPrompt(ids[at : at + length], token_texts[at : at + length]))
            at += length
        return prompts

    def describe(self, model: str, ids: Sequence[int], skip_special_tokens: bool) -> TokenizedPrompt:
        """The text that each of these ids adds. The ids must be in the vocabulary."""
        outputs = self._tokenizer(model, {
            "input_ids": np.array(ids, np.int32),
            "skip_special_tokens": np.array([skip_special_tokens]),
        }, ("token_texts",))
        return TokenizedPrompt(tuple(ids), strings(outputs["token_texts"]))

    def vocabulary(self, model: str) -> Vocabulary:
        """Every id's bytes and text; asked for once, since it is megabytes and never changes for a fingerprint."""
        key = self.model(model).fingerprint
        with self._lock:
            loading = self._vocabulary_locks.setdefault(key, threading.Lock())
        with loading:  # one question for all who wait, and nobody waits for another model's
            if key not in self._vocabularies:
                outputs = self._tokenizer(model, {"vocabulary": np.array([True])}, ("vocabulary", "special_ids"))
                raw = tuple(cast("list[bytes]", outputs["vocabulary"]))
                self._vocabularies[key] = Vocabulary(
                    raw, tuple(item.decode("utf-8", "replace") for item in raw),
                    frozenset(ints(outputs["special_ids"])))
            return self._vocabularies[key]

    # Generating

    def generate(
        self, model: str, generations: Sequence[Generation], request_id: str, timeout: float,
        on_start: Callable[[Callable[[], object]], object],
    ) -> Generator[EngineEvent, None, None]:
        """Run prompts on a Warm model, all on one gRPC stream, and yield what the engine says as it comes.

        `on_start` gets a function that cancels the stream from another thread. Closing the iterator cancels it too, so
        that the engine stops. Raises the ApiError that fits a failure, or Cancelled.
        """
        requests = [engine_request(model + _ENGINE, f"{request_id}/{n}", g) for n, g in enumerate(generations)]
        call = self._streams[self._served_by(model)](iter(requests), timeout=timeout)
        cancelled = threading.Event()

        def cancel() -> None:
            cancelled.set()
            call.cancel()

        on_start(cancel)
        running, started = len(requests), False
        stream = self._watch.add(model, call.cancel)
        try:
            while running:
                message = next(call, None)
                stream.heard()
                if message is None:
                    raise stream_error("the stream ended early", model, started=True)
                if message.error:
                    running -= 1
                    raise stream_error(message.error, model, started)
                response = message.response
                final = response.parameters["triton_final_response"].bool_param
                event = None
                if response.outputs:
                    started = True
                    outputs = read_outputs(response, message.contents)
                    event = engine_event(int(response.id.rpartition("/")[2]), outputs)
                    del outputs
                del message, response  # it may be hundreds of megabytes, and the event has all of it
                if event is not None:
                    yield event
                    del event
                if final:
                    running -= 1
        except grpc.RpcError as error:
            if stream.broken:
                raise broke_off(model) from None
            if cancelled.is_set():
                raise Cancelled from None
            raise api_error(error, model, started) from error
        finally:
            self._watch.remove(stream)
            if running:
                call.cancel()
            else:
                # Triton 2.51 can crash when a stream is cancelled that it is about to end by itself, and gRPC cancels
                # what nobody holds. So it is held until Triton has ended it.
                self._ending.add(call)
                call.add_done_callback(self._ending.discard)

    # Below: one call each

    def _address(self, model: str) -> str | None:
        return self._urls if isinstance(self._urls, str) else self._urls.get(model)

    def _served_by(self, model: str) -> str:
        """The address of the Triton that serves a model. Raises ModelNotFound."""
        address = self._address(model)
        if address is None:
            raise _not_found(model)
        return address

    def _stub(self, model: str) -> service_pb2_grpc.GRPCInferenceServiceStub:
        return self._stubs[self._served_by(model)]

    def _index(self, stub: service_pb2_grpc.GRPCInferenceServiceStub) -> Sequence[
            service_pb2.RepositoryIndexResponse.ModelIndex]:
        try:
            return stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=QUICK).models
        except grpc.RpcError as error:
            raise Unavailable("Inference can't be reached now. Try again in a moment.") from error

    def _tokenizer(
        self, model: str, inputs: dict[str, object], outputs: Sequence[str], timeout: float = QUICK
    ) -> dict[str, Tensor]:
        request = infer_request(model + _TOKENIZER, inputs, outputs)  # type: ignore[arg-type]
        try:
            return read_outputs(self._stub(model).ModelInfer(request, timeout=timeout))
        except grpc.RpcError as error:
            raise api_error(error, model) from error


def _not_found(model: str) -> ModelNotFound:
    return ModelNotFound(f"The model {model!r} does not exist. GET /v1/models lists those that do.", "model")
