"""Puts the Triton server together that the nvidia-pytriton package carries, with our backends in it.

The package has the server, its Python backend and one stub (the process that runs a Python-based backend) for each
Python version, but no directory of backends as the server wants it. That is made here.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.local.checkpoints import is_buildable
from deploy.local.preflight import libpython_folder
from deploy.local.settings import REPOSITORY, Settings

SITE_PACKAGES = Path(sysconfig.get_path("platlib"))
PACKAGE = SITE_PACKAGES / "pytriton" / "tritonserver"
SHARED_MEMORY = Path("/dev/shm")
#: Seconds that Triton may take to unload everything when it is told to stop. Engines would take about ten; nobody uses
#: them any more by then, and their guardian clears up after them when Triton does not wait.
EXIT_TIMEOUT = 3
#: Seconds until a stub has to report for duty; the default, 30, is short for a machine that starts several at once.
STUB_TIMEOUT = 120


def missing_libraries(settings: Settings) -> Iterator[str]:
    """The shared libraries that Triton names and this machine does not have, one line each."""
    named = PACKAGE / "bin" / "tritonserver", PACKAGE / "backends" / "python" / "libtriton_python.so"
    told = subprocess.run(
        ["ldd", *named], env={**os.environ, **environment(settings)}, capture_output=True, text=True, check=False
    ).stdout
    for library in sorted({line.split()[0] for line in told.splitlines() if line.endswith("not found")}):
        yield f"{library} is missing, which Triton loads: install the package that has it (apt-file search {library})"


def assemble(settings: Settings) -> Path:
    """Make the directory of backends anew and return it: Triton's Python backend, and links to ours beside it."""
    backends = settings.home / "triton" / "backends"
    shutil.rmtree(backends, ignore_errors=True)
    # Copies, because Triton refuses a library that lies outside of its backend's directory.
    shutil.copytree(PACKAGE / "backends" / "python", backends / "python")
    stub = PACKAGE / "python_backend_stubs" / "3.11" / "triton_python_backend_stub"
    Path(shutil.copy(stub, backends / "python")).chmod(0o755)
    for model in (REPOSITORY / "backends").glob("*/model.py"):
        (backends / model.parent.name).symlink_to(model.parent)
    return backends


def command(settings: Settings, backends: Path) -> tuple[str, ...]:
    """Triton's command line: everything on the loopback interface, and no model loaded but the tokenizers.

    Engines are the keeper's to load, so that one that fails to start does not keep Triton from starting.
    """
    return (
        str(PACKAGE / "bin" / "tritonserver"),
        f"--model-repository={REPOSITORY / 'model_repository'}",
        f"--backend-directory={backends}",
        "--model-control-mode=explicit",
        *(f"--load-model={model.id}_tokenizer" for model in settings.models),
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={settings.shared_memory_prefix}",
        f"--backend-config=python,stub-timeout-seconds={STUB_TIMEOUT}",
        "--allow-http=false",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={settings.grpc_port}",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={settings.metrics_port}",
        f"--exit-timeout-secs={EXIT_TIMEOUT}",
        "--log-format=ISO8601",
    )


def environment(settings: Settings, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What Triton and its stubs need on top of what they inherit."""
    libraries = [SITE_PACKAGES / "nvidia_pytriton.libs", libpython_folder()]
    caches = settings.home / "cache"
    variables = {
        "LD_LIBRARY_PATH": os.pathsep.join(str(folder) for folder in libraries if folder),
        "PYTHONPATH": os.pathsep.join((str(SITE_PACKAGES), str(REPOSITORY))),
        # The stub's interpreter looks for the python3 of its virtual environment here.
        "PATH": os.pathsep.join((sysconfig.get_path("scripts"), inherited.get("PATH", os.defpath))),
        "STRATA_CHECKPOINTS": str(settings.checkpoints),
        # What vLLM found out about the classes of models, which takes it a process and many seconds.
        "VLLM_CACHE_ROOT": inherited.get("VLLM_CACHE_ROOT", str(caches / "vllm")),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "torchinductor"),
        # What the installed build of vLLM, the one for CPUs, wants: GiB of KV cache for each engine, and no compiling,
        # which costs the first request for log probabilities many seconds and gains nothing here.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if all(is_buildable(model) for model in settings.models):
        variables["HF_HUB_OFFLINE"] = "1"  # nothing to fetch, so a machine without a network must not wait for one
    return variables


def sweep_shared_memory(settings: Settings) -> None:
    """Remove the regions that a Triton of this STRATA_HOME left when it was killed. None may be running."""
    for region in SHARED_MEMORY.glob(f"{settings.shared_memory_prefix}*"):
        region.unlink(missing_ok=True)
