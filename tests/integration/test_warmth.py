"""Cold and Warm with a real Triton and a real engine: one load for all, whether it goes well or not."""
from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local import checkpoints as builder
from frontend.accounts.audit import SYSTEM
from frontend.db.policies import PolicyChange
from frontend.inference import Inference
from frontend.warmth.policies import set_policy
from model_repository import catalog
from tests.paid import Paid, Person, until
from tests.tritons import Triton

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
MODEL = "tiny-llama"


@pytest.fixture(scope="module")
def own_checkpoints(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Path:
    """Checkpoints that a test may break."""
    builder.build(catalog.load()[MODEL], checkpoints)
    own = tmp_path_factory.mktemp("checkpoints")
    shutil.copytree(checkpoints / MODEL, own / MODEL)
    return own


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory, own_checkpoints: Path) -> Iterator[Triton]:
    running = Triton(tmp_path_factory.mktemp("triton"), MODEL, own_checkpoints)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def paid(triton: Triton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paid]:
    """Four workers and a keeper, which finds that the model is on demand when it starts."""
    folder = tmp_path_factory.mktemp("paid")

    class OnDemand(Paid):
        def start_keeper(self) -> object:  # type: ignore[override]
            set_policy(self.database, SYSTEM, MODEL, PolicyChange(warm="on_demand", idle_minutes=0.1))
            return super().start_keeper()

    running = OnDemand(folder, f"sqlite:///{folder / 'strata.db'}", triton.address, STRATA_REQUESTS_PER_MINUTE="100000",
                       STRATA_ACTIVE_REQUESTS="64", STRATA_THREADS="600")
    yield running
    running.stop()


@pytest.fixture
def person(paid: Paid) -> Person:
    person = paid.person(10_000_000)
    person.client.timeout = 300
    return person


def loads(paid: Paid) -> int:
    return (paid.folder / "keeper.out").read_text().count("model_loading")


def state(triton: Triton) -> str:
    inference = Inference([triton.address])
    try:
        return inference.repository.states([MODEL])[MODEL][triton.address]
    finally:
        inference.close()


def fail(paid: Paid, triton: Triton, person: Person, breaks: Callable[[], object], mends: Callable[[], object],
         reason: str) -> None:
    """50 hear of one failed load, and once its cause is gone the next request works."""
    until(lambda: state(triton) == "cold", 90)
    before = loads(paid)
    breaks()
    heard: list[float] = []

    def ask(_: int) -> tuple[int, str]:
        answer = person.ask()
        heard.append(time.monotonic())
        return answer.status_code, answer.text

    with ThreadPoolExecutor(50) as pool:
        answers = Counter(pool.map(ask, range(50)))
    mends()
    assert len(answers) == 1, answers
    ((status, text),) = answers
    assert status == 503
    assert reason in text
    assert max(heard) - min(heard) < 1
    assert loads(paid) == before + 1
    until(lambda: person.ask().status_code == 200, 120)
    assert paid.settled(person).held == 0


def test_50_at_once_on_a_cold_model(paid: Paid, triton: Triton, person: Person) -> None:
    assert state(triton) == "cold"
    with ThreadPoolExecutor(50) as pool:
        answers = Counter(answer.status_code for answer in pool.map(lambda _: person.ask(), range(50)))
    assert answers == {200: 50}
    assert loads(paid) == 1


def test_a_checkpoint_without_weights(paid: Paid, triton: Triton, person: Person, own_checkpoints: Path) -> None:
    weights, away = own_checkpoints / MODEL / "model.safetensors", own_checkpoints / "away"
    fail(paid, triton, person, lambda: weights.rename(away), lambda: away.rename(weights),
         "a part of its checkpoint is missing")


def test_a_checkpoint_that_is_cut_off(paid: Paid, triton: Triton, person: Person, own_checkpoints: Path) -> None:
    weights = own_checkpoints / MODEL / "model.safetensors"
    whole = weights.read_bytes()
    fail(paid, triton, person, lambda: weights.write_bytes(whole[: len(whole) // 2]),
         lambda: weights.write_bytes(whole), "its checkpoint can't be read")


def test_a_checkpoint_that_there_is_no_memory_for(
    paid: Paid, triton: Triton, person: Person, own_checkpoints: Path
) -> None:
    config = own_checkpoints / MODEL / "config.json"
    whole = config.read_text()
    huge = json.dumps({**json.loads(whole), "intermediate_size": 10**11})  # terabytes
    fail(paid, triton, person, lambda: config.write_text(huge), lambda: config.write_text(whole),
         "there is not enough memory for it")
