"""Keeps models Warm: loads those that their cards want Warm always, and replaces processes that were killed."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection

import structlog

from frontend.errors import ApiError
from frontend.inference import Inference

log = structlog.get_logger()

#: Seconds that one load may take; the largest models read hundreds of gigabytes.
LOAD_TIMEOUT = 1800.0
#: Seconds that Triton may take to let go of an engine whose process was killed, or to start a tokenizer again.
REPAIR_TIMEOUT = 120.0
#: Seconds between two questions to a model's processes whether they live.
LIFE_SIGN_EVERY = 5.0
#: Seconds until a load that failed is tried again: twice as long each time, from the first to the last.
FIRST_PAUSE, LAST_PAUSE = 5.0, 300.0


class Warmth:
    """What the keeper knows of the models: which of them it has seen whole, and which failed to load when."""

    def __init__(
        self, inference: Inference, models: Collection[str], may_load: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_load` says whether a model may be loaded now, or the Spend limit forbids it."""
        self._inference = inference
        self._models = models
        self._may_load = may_load
        self._clock = clock
        self._reachable = True
        #: Models that were loaded engine and ensemble, and have been Warm ever since.
        self._whole: set[str] = set()
        #: For a model whose last load failed: how long to pause, and until when.
        self._paused: dict[str, tuple[float, float]] = {}
        #: When the models' processes are asked next.
        self._next_life_sign = 0.0

    def round(self) -> None:
        """Look at every model once and load what is missing. Never raises for what Triton does."""
        try:
            served = [card for card in self._inference.models() if card.id in self._models]
            wanted = [card.id for card in served if card.warm == "always"]
            states = self._inference.states(wanted)
        except ApiError as error:
            self._whole.clear()
            if self._reachable:
                log.warning("triton_unreachable", reason=error.message)
            self._reachable = False
            return
        if not self._reachable:
            log.info("triton_reachable")
        self._reachable = True
        if self._clock() >= self._next_life_sign:
            self._next_life_sign = self._clock() + LIFE_SIGN_EVERY
            self._repair([card.id for card in served])
        for model in wanted:
            if states[model] == "cold":
                self._whole.discard(model)
            if states[model] != "loading" and model not in self._whole:
                self._load(model)

    def _repair(self, models: Collection[str]) -> None:
        """Replace processes that were killed. Triton notices, but starts none again and calls the entry READY."""
        for model in models:
            try:
                if not self._inference.tokenizer_alive(model):
                    log.error("tokenizer_process_gone", model=model)
                    self._inference.restart_tokenizer(model, REPAIR_TIMEOUT)
                if self._inference.state(model) == "warm" and not self._inference.alive(model):
                    log.error("engine_process_gone", model=model)
                    self._inference.unload(model, REPAIR_TIMEOUT)
                    self._whole.discard(model)
            except ApiError as error:
                log.error("model_repair_failed", model=model, reason=error.message)

    def _load(self, model: str) -> None:
        """Load engine and ensemble; Triton leaves alone what it already has."""
        pause, until = self._paused.get(model, (FIRST_PAUSE, 0.0))
        if self._clock() < until or not self._may_load(model):
            return
        started = self._clock()
        log.info("model_loading", model=model)
        try:
            self._inference.load(model, LOAD_TIMEOUT)
        except ApiError as error:
            self._paused[model] = (min(2 * pause, LAST_PAUSE), self._clock() + pause)
            log.error("model_load_failed", model=model, reason=error.message, retry_seconds=pause)
            return
        self._whole.add(model)
        self._paused.pop(model, None)
        log.info("model_warm", model=model, seconds=round(self._clock() - started, 1))
