"""The engine: vLLM's AsyncLLM in an event loop of its own thread, and the requests that it serves.

Started once per model. If the engine's processes die, requests in flight fail and a new engine is started in place,
so the model heals without anybody loading it again; meanwhile requests are refused at once. Where that fails too, the
process ends, and the keeper loads the model anew.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop
from torch._dynamo.utils import dump_compile_times
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from backends.checkpoints import tokenizer_folder
from backends.llama_vllm import causes, prefork
from backends.llama_vllm.activations import ActivationRequest
from backends.llama_vllm.choice import ChoiceState, engine_request, start, vllm_params
from backends.llama_vllm.delivery import Caller, Delivery, Failure
from backends.llama_vllm.metrics import Figures, Publisher, count_steps
from backends.llama_vllm.recording import Recording
from backends.llama_vllm.revival import revive
from backends.llama_vllm.sampling import Sampling
from backends.llama_vllm.settings import EngineSettings
from backends.llama_vllm.slab_folder import SlabFolder
from backends.llama_vllm.slab_pool import SlabPool
from backends.text import TokenTable, load_tokenizer

log = logging.getLogger(__name__)

#: How often callers are asked whether they have gone away.
SWEEP_SECONDS = 0.25
#: So many are asked before other work gets its turn.
SWEEP_AT_ONCE = 32
#: How often figures are passed on to Triton.
PUBLISH_SECONDS = 1.0
#: Responses of one stream are this much further apart for each stream in flight, and never further than the most.
#: A single stream is sent token by token; each of 32 gets at most 11 responses a second, with several tokens in each.
PACE_SECONDS_PER_STREAM = 0.003
PACE_MOST_SECONDS = 0.1


class Engine:
    """Serves one model. All methods may be called from any thread."""

    def __init__(self, settings: EngineSettings, publisher: Publisher) -> None:
        """Starts the engine and waits until it answers. Raises what vLLM raises if it can't start."""
        self._settings = settings
        self._publisher = publisher
        self._figures = Figures()
        self._engine: AsyncLLM | None = None
        self._live: set[Delivery] = set()
        self._slabs = SlabFolder()
        self._pool = SlabPool(min(settings.activation_pool_mb * 2**20, self._slabs.capacity()))
        self._ids = itertools.count()
        self._closing = False
        self._large_answers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="large-answers")
        if current_platform.is_cpu() and settings.engine_args.get("enforce_eager"):
            # Else the first request for log probabilities waits 15 s for a compiler, to no gain.
            os.environ["TORCH_COMPILE_DISABLE"] = "1"
        prefork.use()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        engine = self._run(self._start())
        self.limits = settings.limits(engine.model_config)
        parallel = engine.vllm_config.parallel_config
        self.activation_limits = settings.activation_limits(engine.model_config, parallel, self._pool.capacity)
        tokenizer = load_tokenizer(tokenizer_folder(settings.checkpoint, settings.revision))
        self._table = TokenTable.of(tokenizer, self.limits.vocab_size)
        self._run(self._warm_up())
        # What was imported stays: looking through it for garbage would stop every stream, and delay the end.
        gc.collect()
        gc.freeze()
        atexit.unregister(dump_compile_times)
        self._sweeper = asyncio.run_coroutine_threadsafe(self._sweep(), self._loop)

    def submit(
        self,
        prompt_ids: npt.NDArray[np.int32],
        sampling: Sampling,
        stream: bool,
        caller: Caller,
        activations: ActivationRequest | None = None,
    ) -> None:
        """Takes one request; the caller hears of everything else."""
        if self._engine is None or self._closing:
            caller.fail(Failure.UNAVAILABLE, "the engine is not running; it is being started again")
            return
        self._loop.call_soon_threadsafe(self._admit, prompt_ids.tolist(), sampling, stream, caller, activations)

    def cancel(self, names: Collection[str], done: Callable[[], None]) -> None:
        """Ends the requests that came with these ids; `done` is called once they have ended."""
        self._loop.call_soon_threadsafe(self._cancel, names, done)

    def shutdown(self) -> None:
        """Ends what is in flight with an error and stops the engine."""
        self._closing = True
        self._sweeper.cancel()
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._large_answers.shutdown()
        self._slabs.remove()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> AsyncLLM:
        causes.forget()
        try:
            engine = AsyncLLM.from_engine_args(self._settings.vllm_args())
        except RuntimeError as error:
            raise RuntimeError(causes.first() or str(error)) from error
        count_steps(engine, self._figures)
        self._engine = engine
        return engine

    async def _warm_up(self) -> None:
        """Runs one request through every kernel, so that no caller waits for a compiler."""
        done = asyncio.Event()
        sampling = Sampling(max_tokens=2, seed=0, top_k=2, top_p=0.9, logprobs=1, prompt_logprobs=1)
        caller = WarmUp(done)
        self._admit([0, 0], sampling, False, caller)
        await done.wait()
        if caller.failure:
            raise RuntimeError(f"the engine failed its first request: {caller.failure}")

    async def _stop(self) -> None:
        for delivery in list(self._live):
            delivery.fail(Failure.UNAVAILABLE, "the model is being unloaded")
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    def _admit(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stream: bool,
        caller: Caller,
        activations: ActivationRequest | None = None,
    ) -> None:
        engine = self._engine
        if engine is None or self._closing:
            caller.fail(Failure.UNAVAILABLE, "the engine is not running")
            return
        name = str(next(self._ids))
        recording = Recording(activations, sampling.n, self._slabs.path, name, self._pool) if activations else None
        delivery = Delivery(
            caller, sampling, len(prompt_ids), stream, self._pace, self._large_answers, self._forget, recording
        )
        try:
            requests = [
                engine_request(engine, f"{name}-{index}", prompt_ids, vllm_params(sampling, index, recording))
                for index in range(sampling.n)
            ]
        except (ValueError, VLLMClientError) as error:
            caller.fail(Failure.INVALID_ARGUMENT, one_line(error))
            return
        except Exception as error:
            # Nothing may leave a caller without an answer: this runs as a callback, so nobody else would notice.
            log.exception("a request could not be made")
            caller.fail(Failure.INTERNAL, one_line(error))
            return
        for index, request in enumerate(requests):
            delivery.choices.append(
                ChoiceState(
                    request,
                    index,
                    sampling,
                    self._table,
                    delivery.changed,
                    lambda error: delivery.fail(Failure.UNAVAILABLE, f"the engine died: {one_line(error)}"),
                )
            )
        self._live.add(delivery)
        self._loop.create_task(self._hand_over(engine, delivery, requests))

    async def _hand_over(self, engine: AsyncLLM, delivery: Delivery, requests: list[Any]) -> None:
        try:
            if delivery.recording is not None and not await delivery.recording.open():
                return
        except OSError as error:
            delivery.fail(Failure.UNAVAILABLE, f"there is no shared memory for the activations: {error.strerror}")
            return
        try:
            for request, choice in zip(requests, delivery.choices, strict=True):
                if delivery.closed:
                    return
                await start(engine, request, choice)
        except Exception as error:
            delivery.fail(Failure.UNAVAILABLE, f"the engine died: {one_line(error)}")

    def _cancel(self, names: Collection[str], done: Callable[[], None]) -> None:
        for delivery in list(self._live):
            if delivery.caller.name in names:
                delivery.cancel()
        done()

    def _pace(self) -> float:
        return min(PACE_SECONDS_PER_STREAM * len(self._live), PACE_MOST_SECONDS)

    def _forget(self, delivery: Delivery) -> None:
        """A request has ended, well or not: what the engine still runs of it runs for nobody."""
        self._live.discard(delivery)
        if delivery.recording is not None:
            delivery.recording.close()
        running = [choice.request_id for choice in delivery.choices if choice.ending is None]
        if running and self._engine is not None and not self._engine.errored:
            self._figures.aborted(len(running))
            self._loop.create_task(self._engine.abort(running, internal=True))

    async def _sweep(self) -> None:
        """Notices callers that went away and an engine that died, and passes the figures on."""
        published = 0.0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                for place, delivery in enumerate(list(self._live)):
                    if place % SWEEP_AT_ONCE == SWEEP_AT_ONCE - 1:
                        await asyncio.sleep(0)  # each question is a round trip to Triton: let tokens through
                    if not delivery.closed and delivery.caller.cancelled():
                        delivery.fail(Failure.CANCELLED, "the caller went away")
                if self._engine is not None and self._engine.errored:
                    await self._restart()
                if self._loop.time() - published >= PUBLISH_SECONDS:
                    published = self._loop.time()
                    self._figures.shared_memory(self._pool.used, self._pool.waiting)
                    self._figures.publish(self._publisher)
            except Exception:
                log.exception("sweeping failed")

    async def _restart(self) -> None:
        """Replaces an engine that died."""
        dead, self._engine = self._engine, None
        for delivery in list(self._live):
            delivery.fail(Failure.UNAVAILABLE, "the engine died")
        self._figures.engine_gone()
        try:
            if dead is not None:
                dead.shutdown()
        except Exception:
            log.exception("the engine that died could not be shut down")
        await revive(self._start)


class WarmUp:
    """The caller of the first request: nobody."""

    name = ""

    def __init__(self, done: asyncio.Event) -> None:
        self._done = done
        self.failure = ""

    def send(self, message: Any, final: bool) -> None:
        """Ends the wait with the answer."""
        if final:
            self._done.set()

    def fail(self, failure: Failure, message: str) -> None:
        """Ends the wait without one."""
        self.failure = message
        self._done.set()

    def cancelled(self) -> bool:
        """Never."""
        return False


def one_line(error: BaseException) -> str:
    """What went wrong, fit for an error message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
