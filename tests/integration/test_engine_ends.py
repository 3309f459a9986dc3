"""How an engine ends that is unloaded while it works."""
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deploy.local import checkpoints as builder
from frontend.inference import Inference
from model_repository import catalog
from tests.paid import PATH, Paid, body, until
from tests.tritons import Triton, lives

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]
MODEL = "tiny-llama"
SHARED = "/dev/shm/"


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Iterator[Triton]:
    builder.build(catalog.load()[MODEL], checkpoints)
    running = Triton(tmp_path_factory.mktemp("triton"), MODEL, checkpoints)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def paid(triton: Triton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paid]:
    folder = tmp_path_factory.mktemp("paid")
    running = Paid(folder, f"sqlite:///{folder / 'strata.db'}", triton.address, processes=1)
    yield running
    running.stop()


def engine(triton: Triton) -> list[psutil.Process]:
    """The processes of its engine: the stub and all that came of it."""
    (stub,) = [one for one in triton.family()
               if "triton_python_backend_stub" in " ".join(one.cmdline()) and "_engine" in " ".join(one.cmdline())]
    return [stub, *stub.children(recursive=True)]


def regions(processes: list[psutil.Process]) -> set[Path]:
    """The files and folders in shared memory that they have open or mapped."""
    found = set()
    for process in processes:
        with suppress(psutil.Error, OSError):
            found |= {region.path for region in process.memory_maps()}
            found |= {str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()}
    return {Path(name) for name in found if name.startswith(SHARED) and Path(name).exists()}


def nothing_is_left(processes: list[psutil.Process], shared: set[Path]) -> None:
    until(lambda: not [process for process in processes if lives(process)])
    until(lambda: not [region for region in shared if region.exists()])


def test_what_runs_when_its_model_is_unloaded_finishes_and_what_comes_then_waits(paid: Paid, triton: Triton) -> None:
    """By somebody else than the keeper, which never unloads what is in use. Triton itself waits for what runs."""
    person = paid.person(1_000_000)
    assert person.client.post(PATH, json=body(), timeout=240).status_code == 200
    inference = Inference([triton.address])
    old = engine(triton)
    assert any("EngineCore" in " ".join(process.cmdline()) for process in old)
    captures = {"activations": {"layers": "all"}}
    with (ThreadPoolExecutor(2) as pool,
          person.client.stream("POST", PATH, json=body(max_tokens=1500, stream=True, **captures)) as answer):
        lines = answer.iter_lines()
        next(lines)
        shared = regions(old)
        assert any(region.name.startswith("strata-slabs-") for region in shared)
        inference.repository.unload(MODEL, triton.address, 60)
        later = pool.submit(person.client.post, PATH, json=body(), timeout=240)
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        nothing_is_left(old, shared)
        assert later.result().status_code == 200  # the policy of its model is `always`
    inference.close()
    assert paid.settled(person).charged == 2 * (4 + 8) + 4 + 1500
