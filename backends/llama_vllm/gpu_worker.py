"""The worker process's side on a GPU: Activations are captured beside the steps. Named to vLLM by `worker_cls`.

A step's rows are gathered on the stream that the model runs on, before the next step can overwrite them; a second
stream copies them into pinned memory, and a thread stores them once that copy is complete. Nothing waits on the way.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

import torch
from vllm.config import VllmConfig
from vllm.v1.worker import gpu_worker

from backends.llama_vllm import causes
from backends.llama_vllm.capture import Capture, CapturesActivations, Choice, mark_failed, store
from backends.llama_vllm.positions import Run

log = logging.getLogger(__name__)
# Each worker has a process of its own, unless there is one.
causes.watch()

#: Blocks of rows on their way to their slabs at one time; the next step waits when there are more.
BLOCKS_IN_FLIGHT = 16


class GPUCapture(Capture):
    """Capture whose rows are stored after the step that made them."""

    def __init__(self, runner: object, config: VllmConfig) -> None:
        super().__init__(runner, config)
        self._stream = torch.cuda.Stream()
        self._in_flight: queue.Queue[tuple[torch.cuda.Event, torch.Tensor, Sequence[tuple[Choice, Run]]] | Choice]
        self._in_flight = queue.Queue(BLOCKS_IN_FLIGHT)
        threading.Thread(target=self._store_all, name="activations", daemon=True).start()

    def _index(self, rows: list[int], device: torch.device) -> torch.Tensor:
        return torch.tensor(rows, pin_memory=True).to(device, non_blocking=True)

    def _publish(self, rows: torch.Tensor, whose: Sequence[tuple[Choice, Run]]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # who waits for it leaves its core alone
            copied.record()
        rows.record_stream(self._stream)  # its memory may not go to the next step before it is copied
        self._in_flight.put((copied, host, whose))

    def _close(self, choice: Choice) -> None:
        self._in_flight.put(choice)  # after the rows of it that are still on their way

    def _store_all(self) -> None:
        while True:
            item = self._in_flight.get()
            if isinstance(item, Choice):
                item.slab.close()
                continue
            copied, host, whose = item
            try:
                copied.synchronize()
            except Exception as error:
                log.exception("activations could not be copied from the GPU")
                for choice, _ in whose:
                    mark_failed(choice, error)
            else:
                store(host, whose)


class LlamaGPUWorker(CapturesActivations, gpu_worker.Worker):
    """vLLM's GPU worker."""

    def _make_capture(self) -> Capture:
        return GPUCapture(self.model_runner, self.vllm_config)
