"""Where models are Warm, as this process saw it a moment ago: asked of Triton once for all requests, not by each."""
from __future__ import annotations

import threading
import time

from frontend.inference import Inference
from frontend.inference.repository import State

#: Seconds after which a request does not believe the view any more and asks Triton itself.
STALE = 3.0


class View:
    """The states of the models that this process was asked for. Threads share it."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._refreshing = threading.Lock()
        self._models: set[str] = set()
        self._states: dict[str, dict[str, State]] = {}
        self._seen = float("-inf")
        self._probing: set[tuple[str, str]] = set()

    def warm(self, model: str) -> list[str]:
        """The endpoints where a model is Warm and answers, as far as anybody knows."""
        if model not in self._models or time.monotonic() - self._seen > STALE:
            self._models.add(model)
            self.refresh()
        ejected = self._inference.endpoints.ejected()
        return [address for address, state in self._states.get(model, {}).items()
                if state == "warm" and (model, address) not in ejected]

    def refresh(self, older_than: float = 0.0) -> None:
        """Ask every Triton now, unless the view is younger than that, or somebody is asking already."""
        if time.monotonic() - self._seen < older_than or not self._refreshing.acquire(blocking=not self._states):
            return
        try:
            self._states = self._inference.repository.states(tuple(self._models))
            self._seen = time.monotonic()
        finally:
            self._refreshing.release()

    def confirm(self, model: str, address: str) -> bool:
        """Whether a model is Warm there right now."""
        if self._inference.repository.warm(model, address):
            return True
        self._states = {**self._states, model: {**self._states.get(model, {}), address: "cold"}}
        return False

    def probe(self) -> None:
        """Ask the engines that failed whether they answer again, each on a thread of its own: it may take seconds."""
        for engine in self._inference.endpoints.ejected():
            if engine not in self._probing:
                self._probing.add(engine)
                threading.Thread(target=self._probe, args=engine, name="probe", daemon=True).start()

    def _probe(self, model: str, address: str) -> None:
        try:
            if self._inference.repository.probe(model, address):
                self._inference.endpoints.readmit(model, address)
        finally:
            self._probing.discard((model, address))
