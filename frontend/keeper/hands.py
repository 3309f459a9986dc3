"""The keeper's hands: loads and unloads on threads, one thing at a time for each model and Triton."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from frontend.errors import ApiError
from frontend.inference import Inference, LoadError
from frontend.keeper.decide import Place
from frontend.warmth.records import Records
from frontend.warmth.scripts import Scripts

log = structlog.get_logger()

#: Seconds that one load may take; the largest models read hundreds of gigabytes.
LOAD_TIMEOUT = 1800.0
#: Seconds that Triton may take to let go of an engine, or to start a tokenizer again.
REPAIR_TIMEOUT = 120.0
#: Seconds until a load that failed is tried again: twice as long each time, from the first to the last.
FIRST_PAUSE, LAST_PAUSE = 5.0, 300.0


class Hands:
    """What is being done now. Threads share it."""

    def __init__(self, inference: Inference, records: Records, scripts: Scripts) -> None:
        self._repository = inference.repository
        self._records, self._scripts = records, scripts
        self._lock = threading.Lock()
        self._busy: set[Place] = set()
        #: Places that were loaded engine and ensemble, and have been Warm ever since.
        self._whole: set[Place] = set()
        #: Places whose engine was killed, and replaced by none yet.
        self._killed: set[Place] = set()

    def busy(self) -> frozenset[Place]:
        """Where something is being done."""
        with self._lock:
            return frozenset(self._busy)

    def whole(self) -> frozenset[Place]:
        """Where nothing is missing, as far as was seen."""
        with self._lock:
            return frozenset(self._whole)

    def killed(self) -> frozenset[Place]:
        """Where an engine was killed and let go of."""
        with self._lock:
            return frozenset(self._killed)

    def not_whole(self, place: Place) -> None:
        """It was seen Cold, or its Triton away."""
        with self._lock:
            self._whole.discard(place)

    def load(self, place: Place, attempt: int = 1, new: bool = True) -> None:
        """Load engine and ensemble; Triton leaves alone what it already has. `attempt` counts those that failed in a
        row; `new`: the engine is not there yet."""
        self._do(place, lambda: self._load(place, attempt, new))

    def unload(self, place: Place, idle_seconds: float) -> None:
        """Unload a model, if nothing of it was asked there for so long."""
        self._do(place, lambda: self._unload(place, idle_seconds))

    def replace(self, place: Place) -> None:
        """Let go of an engine whose process was killed. Triton notices, but starts none again and calls it READY."""
        self._do(place, lambda: self._replace(place))

    def restart_tokenizer(self, place: Place) -> None:
        """Give a tokenizer a new process."""
        self._do(place, lambda: self._repository.restart_tokenizer(*place, REPAIR_TIMEOUT))

    def _do(self, place: Place, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except ApiError as error:
                log.error("model_repair_failed", model=place[0], triton=place[1], reason=error.message)
            except Exception as error:
                log.error("keeper_failed", model=place[0], triton=place[1], exc_info=error)
            finally:
                with self._lock:
                    self._busy.discard(place)

        with self._lock:
            if place in self._busy:
                return
            self._busy.add(place)
        threading.Thread(target=run, name=f"{place[0]}@{place[1]}", daemon=True).start()

    def _load(self, place: Place, attempt: int, new: bool) -> None:
        model, address = place
        started = time.monotonic()
        if new:
            log.info("model_loading", model=model, triton=address)
            self._records.loading(model, address)
        try:
            self._repository.load(model, address, LOAD_TIMEOUT)
        except LoadError as error:
            self._failed(place, attempt, error)
            return
        finally:
            self._records.loaded(model, address)
        seconds = time.monotonic() - started
        self._records.succeed(model, address, seconds if new else None)
        with self._lock:
            self._whole.add(place)
            self._killed.discard(place)
        if new:
            log.info("model_warm", model=model, triton=address, seconds=round(seconds, 1))

    def _failed(self, place: Place, attempt: int, error: LoadError) -> None:
        model, address = place
        pause = min(FIRST_PAUSE * 2 ** (attempt - 1), LAST_PAUSE)
        # A Triton that went away is waited for, unless it does so each time it loads this model.
        self._records.fail(model, address, error.reason, pause, attempt, error.unreachable and attempt == 1)
        log.error("model_load_failed", model=model, triton=address, reason=error.reason, details=error.details,
                  retry_seconds=pause)

    def _unload(self, place: Place, idle_seconds: float) -> None:
        model, address = place
        if not self._scripts.close(model, address, idle_seconds):
            return  # somebody came
        log.info("model_unloading", model=model, triton=address)
        try:
            self._repository.unload(model, address, REPAIR_TIMEOUT)
        finally:
            self._records.open(model, address)
            self.not_whole(place)
        log.info("model_cold", model=model, triton=address)

    def _replace(self, place: Place) -> None:
        log.error("engine_process_gone", model=place[0], triton=place[1])
        self._repository.unload(*place, REPAIR_TIMEOUT)
        with self._lock:
            self._whole.discard(place)
            self._killed.add(place)
