"""Triton's edge of the engine: tensors in, responses out, as described in `model_repository/` (`<id>_engine`)."""

from __future__ import annotations

import locale
import os
import sys

# The stub runs Python isolated from the environment: without a locale, so that UTF-8 files are read as ASCII, and
# without PYTHONPATH, which is where this package is.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
sys.path += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in sys.path]

import json  # noqa: E402
import threading  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402

from backends.llama_vllm import causes, guard, prefork  # noqa: E402
from backends.llama_vllm.outputs import Message, make_sure_of_room  # noqa: E402
from backends.llama_vllm.sampling import InvalidRequest, parse_sampling  # noqa: E402


class TritonPythonModel:
    """One model's engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts the engine that the entry's `engine` parameter describes."""
        guard.start()
        causes.prepare()
        prefork.start()
        from backends.llama_vllm.engine import Engine
        from backends.llama_vllm.settings import EngineSettings

        config = json.loads(args["model_config"])
        settings = EngineSettings(**json.loads(config["parameters"]["engine"]["string_value"]))
        self._metrics = TritonMetrics(config["name"].removesuffix("_engine"))
        self._engine = Engine(settings, self._metrics)

    def execute(self, requests: list[Any]) -> None:
        """Takes requests; their responses come from the engine's thread."""
        from backends.llama_vllm.activations import parse_activations

        for request in requests:
            caller = TritonCaller(request.get_response_sender(), request.request_id())
            ids = several(request, "cancel")
            if ids is not None:
                self._engine.cancel({name.decode("utf-8", "replace") for name in ids}, caller.end)
                continue
            try:
                prompt = pb_utils.get_input_tensor_by_name(request, "input_ids")
                if prompt is None:
                    raise InvalidRequest("input_ids is missing")
                prompt_ids = prompt.as_numpy().ravel()
                raw = optional(request, "sampling")
                sampling = parse_sampling(raw, prompt_ids, self._engine.limits)
                activations = parse_activations(
                    several(request, "activation_layers"),
                    several(request, "activation_positions"),
                    optional(request, "activation_dtype"),
                    len(prompt_ids),
                    sampling,
                    self._engine.activation_limits,
                )
            except InvalidRequest as error:
                caller.refuse("INVALID_ARG", str(error))
            else:
                stream = bool(optional(request, "stream") or False)
                self._engine.submit(prompt_ids, sampling, stream, caller, activations)

    def finalize(self) -> None:
        """Unloads: the engine's processes stop. Triton waits until nothing is in flight before it calls this."""
        self._engine.shutdown()
        self._metrics.close()


class TritonCaller:
    """The sender of one request, as `backends.llama_vllm.delivery.Caller`.

    The sender is let go with the last response: one that is collected after the stub has shut down crashes it. And
    Triton itself crashes where it is asked about a request that is being closed meanwhile, by another thread.
    """

    def __init__(self, sender: Any, name: str) -> None:
        self.name = name
        self._sender: Any = sender
        self._using = threading.Lock()

    def send(self, message: Message, final: bool) -> None:
        """Sends one response. Raises NoRoom."""
        make_sure_of_room(message)
        self._send(pb_utils.InferenceResponse([tensor(name, array) for name, array in message.items()]), final)

    def fail(self, failure: Any, message: str) -> None:
        """Closes the request with one of `delivery.Failure`."""
        self.refuse(failure.value, message)

    def end(self) -> None:
        """Closes the request without a response."""
        self._send(None, final=True)

    def refuse(self, code: str, message: str) -> None:
        """Closes the request with an error. Its message begins with its code, which Triton's streams do not pass on."""
        error = pb_utils.TritonError(f"{code}: {message}", getattr(pb_utils.TritonError, code))
        self._send(pb_utils.InferenceResponse(error=error), final=True)

    def cancelled(self) -> bool:
        """Whether the client has cancelled or gone; no, while a response is being sent: it may be the last."""
        if not self._using.acquire(blocking=False):
            return False
        try:
            return self._sender is not None and bool(self._sender.is_cancelled())
        finally:
            self._using.release()

    def _send(self, response: Any, final: bool) -> None:
        with self._using:
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
            if final:
                self._sender = None


class TritonMetrics:
    """Triton's custom metrics, as `backends.llama_vllm.metrics.Publisher`."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._last: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def gauge(self, name: str, help: str, value: float, labels: tuple[tuple[str, str], ...] = ()) -> None:
        """Sets a gauge."""
        metric = self._metric(name, help, pb_utils.MetricFamily.GAUGE, labels)
        if self._last.get((name, labels)) != value:
            self._last[name, labels] = value
            metric.set(value)

    def counter(self, name: str, help: str, total: float, labels: tuple[tuple[str, str], ...] = ()) -> None:
        """Raises a counter to this total."""
        metric = self._metric(name, help, pb_utils.MetricFamily.COUNTER, labels)
        step = total - self._last.get((name, labels), 0)
        if step > 0:
            self._last[name, labels] = total
            metric.increment(step)

    def close(self) -> None:
        """Takes the metrics off Triton's page: the stub crashes on those that it still has when it ends."""
        self._metrics.clear()
        self._families.clear()

    def _metric(self, name: str, help: str, kind: Any, labels: tuple[tuple[str, str], ...]) -> Any:
        metric = self._metrics.get((name, labels))
        if metric is None:
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = pb_utils.MetricFamily(name=name, description=help, kind=kind)
            metric = family.Metric(labels={"model": self._model, **dict(labels)})
            self._metrics[name, labels] = metric
        return metric


def tensor(name: str, array: Any) -> Any:
    """An array of numpy or a tensor of torch as Triton's; its data type need not be the one that is declared."""
    return pb_utils.Tensor(name, array) if isinstance(array, np.ndarray) else pb_utils.Tensor.from_dlpack(name, array)


def several(request: Any, name: str) -> list[bytes] | None:
    """The values of an optional input of strings, None if it was left out."""
    given = pb_utils.get_input_tensor_by_name(request, name)
    return None if given is None else given.as_numpy().ravel().tolist()


def optional(request: Any, name: str) -> Any:
    """The single value of an optional input, None if it was left out."""
    given = pb_utils.get_input_tensor_by_name(request, name)
    return None if given is None else given.as_numpy().ravel()[0]
