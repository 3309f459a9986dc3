"""A worker that breaks on request, for tests: named to vLLM as `worker_cls` in place of ours."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from backends.llama_vllm.capture import Capture
from backends.llama_vllm.positions import Piece, Run
from backends.llama_vllm.worker import LlamaCPUWorker

#: Capturing this position fails while its rows are gathered, and this one while they are stored.
BREAKS_GATHERING, BREAKS_STORING = 1717, 1818


class FaultyCapture(Capture):
    """Fails where it is told to."""

    def _gather(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, block: Sequence[Piece]) -> torch.Tensor:
        if any(piece.run.position == BREAKS_GATHERING for piece in block):
            raise RuntimeError("gathering broke")
        return super()._gather(tensors, dtype, block)

    def _publish(self, rows: torch.Tensor, whose: Sequence[tuple[Any, Run]]) -> None:
        for choice, run in whose:
            if run.position == BREAKS_STORING:
                choice.slab.write = _broken
        super()._publish(rows, whose)


def _broken(*_: object) -> None:
    raise OSError("storing broke")


class FaultyWorker(LlamaCPUWorker):
    """Our worker around that."""

    def _make_capture(self) -> Capture:
        return FaultyCapture(self.model_runner, self.vllm_config)


