"""How the engine's core waits for its workers on a machine without accelerators. Named to vLLM as the executor.

vLLM's core and worker watch their shared-memory queue in a busy loop, one core each. On a GPU machine those cores are
idle anyway; on two cores the loop takes from the model, from Triton and from the frontend what they need.
"""

from __future__ import annotations

import os
import time

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

#: Between two looks at the queue. A step of even the smallest model takes a hundred times as long.
LOOK_SECONDS = 50e-6


def wait_patiently() -> None:
    """Sleep between two looks at a queue, in this process."""
    shm_broadcast.sched_yield = lambda: time.sleep(LOOK_SECONDS)


class PatientExecutor(MultiprocExecutor):
    """vLLM's executor, which lives in the core's process and waits patiently there."""

    def _init_executor(self) -> None:
        wait_patiently()
        # A worker must be a fresh process: OpenMP reads its threads and cores from the environment when it is loaded.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        super()._init_executor()
