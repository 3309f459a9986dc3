"""The client of one or several Tritons: models and their states, tokenizing, generating."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, cast

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from frontend.errors import ApiError
from frontend.inference.card import ModelCard
from frontend.inference.endpoints import Endpoints, Urls, not_found
from frontend.inference.engine import cancel_request, engine_event, engine_request
from frontend.inference.entries import ENGINE, TOKENIZER
from frontend.inference.events import EngineEvent, Generation, LensReading, TokenizedPrompt, Vocabulary
from frontend.inference.faults import (
    BROKEN,
    Cancelled,
    api_error,
    broke_off,
    is_not_loaded,
    stream_error,
    too_late,
    unreachable,
)
from frontend.inference.repository import QUICK, Repository
from frontend.inference.tensors import Tensor, infer_request, ints, read_outputs, strings
from frontend.inference.watch import StreamWatch

#: Seconds for which a model's card is believed before Triton is asked again.
CARD_TTL = 10.0
#: Seconds for an engine to end what it was asked to end.
GRACE = 5.0
#: Seconds for the output head to read one Layer of a prompt.
LENS = 60.0


class Inference:
    """All served models. Threads may share one; a forked process must make its own.

    `urls` are the gRPC addresses of Tritons that all serve the same, or those of each model id.
    """

    def __init__(self, urls: Urls) -> None:
        self.endpoints = Endpoints(urls)
        self.repository = Repository(self.endpoints)
        self._lock = threading.Lock()
        self._ending: set[object] = set()
        self._watch = StreamWatch(self.repository.alive)
        self._cards: dict[str, tuple[float, ModelCard]] = {}
        self._vocabularies: dict[str, Vocabulary] = {}
        self._vocabulary_locks: dict[str, threading.Lock] = {}
        self._lens_lock = threading.Lock()

    def close(self) -> None:
        """Close every connection; running calls end as cancelled."""
        self.endpoints.close()

    # Models and their states

    def models(self) -> list[ModelCard]:
        """The models that can be asked for, Warm or Cold: those whose tokenizer is loaded. Sorted by id."""
        served = self.repository.served()
        if served is None:
            raise unreachable()
        return [self.model(model) for model in served]

    def model(self, model: str) -> ModelCard:
        """The card of one model. Raises ModelNotFound when no Triton serves it."""
        known = self._cards.get(model)
        if known and time.monotonic() - known[0] < CARD_TTL:
            return known[1]
        question = service_pb2.ModelConfigRequest(name=model + TOKENIZER)
        try:
            config = self.endpoints.ask(model, lambda stub: stub.ModelConfig(question, timeout=QUICK)).config
        except grpc.RpcError as error:
            unknown = error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
            if unknown or is_not_loaded(error.details()):
                if known:  # its tokenizer starts again
                    return known[1]
                raise not_found(model) from None
            raise api_error(error, model) from error
        card = ModelCard.from_json(config.parameters["card"].string_value)
        self._cards[model] = (time.monotonic(), card)
        return card

    def knows(self, model: str) -> bool:
        """Whether a model was ever found to be served; asks nobody."""
        return model in self._cards

    def states(self, models: Sequence[str]) -> dict[str, str]:
        """`warm`, `loading` or `cold` for each model: the best that any of its Tritons has, asked for now.

        Raises Unavailable where no Triton of a model answers.
        """
        found = {}
        for model, states in self.repository.states(models).items():
            known = set(states.values()) - {"away"}
            if states and not known:
                raise unreachable()
            found[model] = "warm" if "warm" in known else "loading" if "loading" in known else "cold"
        return found

    def engines(self, models: Sequence[str]) -> dict[str, int]:
        """How many engines of each model have GPUs now: those that load or unload have them too."""
        return {model: sum(state not in ("cold", "away") for state in states.values())
                for model, states in self.repository.states(models).items()}

    def ready(self) -> bool:
        """Whether enough Tritons answer for every model to be served."""
        return self.repository.live()

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

    def lens(
        self, model: str, residual: npt.NDArray[np.float32], normed: Sequence[bool], top: int
    ) -> LensReading:
        """Read a residual stream [layers, positions, hidden] by the model's output head; `normed` says of each Layer
        whether it has passed the final norm.

        It takes turns with tokenizing, so it asks for one Layer at a time, and one reading runs in this process.
        """
        readings = []
        with self._lens_lock:
            for rows, done in zip(residual, normed, strict=True):
                outputs = self._tokenizer(model, {
                    "residual": np.ascontiguousarray(rows), "normed": np.array([done]),
                    "lens_top": np.array([top], np.int32),
                }, ("lens_ids", "lens_probabilities"), LENS)
                readings.append((outputs["lens_ids"], outputs["lens_probabilities"]))
        ids, probabilities = (np.stack(cast("list[npt.NDArray[Any]]", part)) for part in zip(*readings, strict=True))
        return LensReading(ids, probabilities)

    # Generating

    def generate(
        self, model: str, address: str, generations: Sequence[Generation], request_id: str, timeout: float,
        on_start: Callable[[Callable[[], object]], object],
    ) -> Generator[EngineEvent, None, None]:
        """Run prompts where a model is Warm, all on one gRPC stream, and yield what the engine says as it comes.

        `on_start` gets a function that stops the engine, for another thread to call. Closing the iterator stops it too,
        and returns once it has stopped. Raises the ApiError that fits a failure, or Cancelled: after events with the
        tokens that were generated until then, which are to be paid.

        Triton 2.51 can crash when a stream is cancelled that is about to end by itself (later ones should not: pull
        requests 7840 and 8078 of triton-inference-server/server). So the engine is asked to end the requests, and their
        stream is read to its end; it is cancelled only if it does not end even so.
        """
        requests = [engine_request(model + ENGINE, f"{request_id}/{n}", g) for n, g in enumerate(generations)]
        endpoint = self.endpoints.at(address)
        call = endpoint.stream(iter(requests), timeout=timeout + 2 * GRACE)
        stream = self._watch.add(model, address, call.cancel)
        reasons: list[Exception] = []  # why it was stopped; the first counts

        def stop(reason: Exception) -> None:
            if not reasons:
                reasons.append(reason)
                stream.due(GRACE, call.cancel)
                request = cancel_request(model + ENGINE, [request.id for request in requests])
                self._hold(endpoint.stream(iter([request]), timeout=GRACE))

        stream.due(timeout, lambda: stop(too_late(model)))
        running, started = len(requests), False
        try:
            on_start(lambda: stop(Cancelled()))
            while running:
                message = next(call, None)
                stream.heard()
                if message is None:
                    break
                if message.error:
                    running -= 1
                    if not reasons:
                        raise self._failed(stream_error(message.error, model, started), model, address)
                    continue  # one that was to end
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
            if reasons:
                raise reasons[0]
            if running:
                raise self._failed(stream_error("the stream ended early", model, started=True), model, address)
        except grpc.RpcError as error:
            if stream.broken:
                raise self._failed(broke_off(model), model, address) from None
            if reasons:
                raise reasons[0] from None
            raise self._failed(api_error(error, model, started), model, address) from error
        finally:
            if running and not call.done():
                stop(Cancelled())
                with suppress(grpc.RpcError):
                    for _ in call:
                        pass
            reasons.append(Cancelled())  # nothing is left to stop
            self._watch.remove(stream)
            self._hold(call)

    def _hold(self, call: grpc.Call) -> None:
        """Keep a call until Triton has ended it: gRPC cancels what nobody holds."""
        self._ending.add(call)
        call.add_done_callback(self._ending.discard)

    def _failed(self, error: ApiError, model: str, address: str) -> ApiError:
        """The same error; where it is about the engine and not the request, the engine gets none until it answers."""
        if isinstance(error, BROKEN):
            self.endpoints.eject(model, address)
        return error

    def _tokenizer(
        self, model: str, inputs: dict[str, object], outputs: Sequence[str], timeout: float = QUICK
    ) -> dict[str, Tensor]:
        request = infer_request(model + TOKENIZER, inputs, outputs)  # type: ignore[arg-type]
        try:
            return read_outputs(self.endpoints.ask(model, lambda stub: stub.ModelInfer(request, timeout=timeout)))
        except grpc.RpcError as error:
            raise api_error(error, model) from error
