"""How the engine's core reaches its worker on a machine without accelerators. Named to vLLM as the executor.

vLLM gives every CPU worker a process of its own, to set OpenMP's threads by its environment, and has core and worker
watch their shared-memory queue in a busy loop, one core each. On a GPU machine those cores are idle anyway; here they
are what the model, Triton and the frontend need. So a single worker lives in the core's process, where torch can set
the threads as well, which also saves a third of the start and a gigabyte of memory; several wait patiently.
"""

from __future__ import annotations

import os
import time

import torch
from vllm.distributed.device_communicators import shm_broadcast
from vllm.utils.cpu_resource_utils import get_visible_memory_node
from vllm.utils.torch_utils import available_cpu_count
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from backends.llama_vllm import causes

# The core imports this, or was forked from a process that did.
causes.watch()

#: Between two looks at the queue. A step of even the smallest model takes a hundred times as long.
LOOK_SECONDS = 50e-6


def wait_patiently() -> None:
    """Sleep between two looks at a queue, in this process."""
    shm_broadcast.sched_yield = lambda: time.sleep(LOOK_SECONDS)


def bind_to_cores(workers: int) -> None:
    """Share this process's cores between the workers, where vLLM would not: it wants a NUMA node for each of them."""
    if "VLLM_CPU_OMP_THREADS_BIND" in os.environ or len(get_visible_memory_node()) >= workers:
        return
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // workers
    shares = [cores[share * worker : share * (worker + 1)] for worker in range(workers)]
    bound = "|".join(",".join(map(str, one)) for one in shares) if share else "nobind"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = bound


class InProcessExecutor(UniProcExecutor):
    """One worker, in the core's own process and thread."""

    def _init_executor(self) -> None:
        # One core stays free for the processes around it. In the environment, so that vLLM leaves it as it is.
        threads = os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpu_count() - 1)))
        torch.set_num_threads(int(threads))
        super()._init_executor()


class PatientExecutor(MultiprocExecutor):
    """Several workers. The executor lives in the core's process and waits patiently there."""

    def _init_executor(self) -> None:
        wait_patiently()
        bind_to_cores(self.parallel_config.local_world_size)
        # A worker must be a fresh process: OpenMP reads its threads and cores from the environment when it is loaded.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        super()._init_executor()
