"""Two real Tritons that serve one model: what dies takes its own streams with it and nothing else."""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local import checkpoints as builder
from frontend.budgets.usage import export_usage
from frontend.inference import Inference
from frontend.warmth.records import Records
from model_repository import catalog
from tests.paid import PATH, STREAMS, Paid, Person, body, run_streams, streams, until
from tests.tritons import Triton, lives

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

MINUTE = 60.0
#: Tokens of the prompt that every stream has; and how many of STREAMS capture Activations.
PROMPT, CAPTURING = 4, 8


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Iterator[list[Triton]]:
    builder.build(catalog.load()["tiny-llama"], checkpoints)
    running = [Triton(tmp_path_factory.mktemp(name), "tiny-llama", checkpoints, core)
               for core, name in enumerate(("first", "second"))]
    yield running
    for triton in running:
        triton.stop()


@pytest.fixture(scope="module")
def paid(tritons: list[Triton], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paid]:
    folder = tmp_path_factory.mktemp("paid")
    running = Paid(folder, f"sqlite:///{folder / 'strata.db'}", "|".join(triton.address for triton in tritons),
                   STRATA_REQUESTS_PER_MINUTE="100000", STRATA_ACTIVE_REQUESTS="64", STRATA_THREADS="600")
    yield running
    running.stop()


@pytest.fixture
def person(paid: Paid, tritons: list[Triton]) -> Person:
    """Somebody with tokens, once the model is Warm everywhere."""
    warm_everywhere(tritons)
    return paid.person(10_000_000)


def warm_everywhere(tritons: list[Triton], patience: float = 240) -> None:
    inference = Inference([triton.address for triton in tritons])
    until(lambda: set(inference.repository.states(["tiny-llama"])["tiny-llama"].values()) == {"warm"}, patience)
    until(lambda: all(inference.repository.probe("tiny-llama", triton.address) for triton in tritons), patience)
    inference.close()


def the_same_load_passes(paid: Paid, person: Person, tritons: list[Triton]) -> None:
    """Once every Triton has been up for a minute at most, with nothing held and nobody left at any place."""
    warm_everywhere(tritons, MINUTE)
    assert streams(person, lambda: None, tokens=40) == {"whole": STREAMS}
    assert paid.settled(person).held == 0
    until(lambda: all(Records(paid.valkey.client).active("tiny-llama", triton.address) == 0 for triton in tritons))


def break_streams(paid: Paid, person: Person, kill: Callable[[], object]) -> Counter[str]:
    """How 1500 tokens each end for STREAMS streams, some of which capture Activations, when something is killed.

    What was produced and sent is charged and no more: nothing where the Activations never came.
    """
    ends = run_streams(person, kill, 1500, CAPTURING)
    assert paid.settled(person).held == 0
    due = [0 if one.captures and one.how != "whole" else PROMPT + one.tokens for one in ends]
    assert sorted(record.charged for record in export_usage(paid.database, person.account.id)) == sorted(due)
    assert all(one.tokens == 1500 for one in ends if one.how == "whole")
    return Counter(one.how for one in ends)


def slabs_of(tritons: list[Triton]) -> set[Path]:
    return set().union(*(triton.slabs() for triton in tritons))


def nothing_is_left(tritons: list[Triton], slabs: set[Path]) -> None:
    """Once the model is Warm again, neither a process nor shared memory of the engines that died, which had `slabs`."""
    held = slabs_of(tritons)
    assert len(held) == len(tritons)
    until(lambda: not [folder for folder in slabs - held if folder.exists()])
    until(lambda: not [slab for folder in held for slab in folder.iterdir()])
    until(lambda: not [process for triton in tritons for process in triton.orphans()])


def process_of(triton: Triton, sign: str) -> Callable[[], None]:
    (process,) = [one for one in triton.family() if sign in " ".join(one.cmdline())]
    return process.kill


def test_streams_are_shared_out_evenly(paid: Paid, person: Person, tritons: list[Triton]) -> None:
    seen: list[list[int]] = []
    records = Records(paid.valkey.client)
    ends = streams(person, lambda: seen.append([records.active("tiny-llama", one.address) for one in tritons]), 200)
    assert ends == {"whole": STREAMS}
    assert seen == [[STREAMS // 2, STREAMS // 2]]


def test_killing_an_engine_breaks_its_streams_only(paid: Paid, person: Person, tritons: list[Triton]) -> None:
    kill, slabs = process_of(tritons[0], "EngineCore"), slabs_of(tritons)
    ends = break_streams(paid, person, kill)
    assert ends == {"whole": STREAMS // 2, "inference_error": STREAMS // 2}
    assert person.ask().status_code == 200
    the_same_load_passes(paid, person, tritons)
    nothing_is_left(tritons, slabs)


def test_killing_a_stub_breaks_its_streams_only(paid: Paid, person: Person, tritons: list[Triton]) -> None:
    (stub,) = [one for one in tritons[0].family()
               if "triton_python_backend_stub" in " ".join(one.cmdline()) and "_engine" in " ".join(one.cmdline())]
    family, slabs = stub.children(recursive=True), slabs_of(tritons)
    assert break_streams(paid, person, stub.kill) == {"whole": STREAMS // 2, "inference_error": STREAMS // 2}
    assert person.ask().status_code == 200
    the_same_load_passes(paid, person, tritons)
    nothing_is_left(tritons, slabs)
    assert not [process for process in family if lives(process)]


def test_killing_one_triton_of_two_breaks_its_streams_only(
    paid: Paid, person: Person, tritons: list[Triton]
) -> None:
    family, slabs = tritons[0].family(), slabs_of(tritons)
    assert any("EngineCore" in " ".join(process.cmdline()) for process in family)
    assert break_streams(paid, person, tritons[0].kill) == {"whole": STREAMS // 2, "inference_error": STREAMS // 2}
    with ThreadPoolExecutor(8) as pool:
        assert {answer.status_code for answer in pool.map(lambda _: person.ask(), range(24))} == {200}
    until(lambda: not [process for process in [*family, *tritons[0].family()] if lives(process)])  # no orphan
    tritons[0].start()
    the_same_load_passes(paid, person, tritons)
    nothing_is_left(tritons, slabs)


def test_a_drained_triton_finishes_and_goes_cold(paid: Paid, person: Person, tritons: list[Triton]) -> None:
    inference = Inference([triton.address for triton in tritons])

    def state() -> str:
        return inference.repository.states(["tiny-llama"])["tiny-llama"][tritons[0].address]

    assert streams(person, lambda: paid.drain(tritons[0].address, True), 600) == {"whole": STREAMS}
    until(lambda: state() == "cold")
    assert person.ask().status_code == 200
    paid.drain(tritons[0].address, False)
    until(lambda: state() == "warm", 120)  # its policy is always
    inference.close()
    the_same_load_passes(paid, person, tritons)


def test_when_both_are_killed_new_requests_wait(paid: Paid, person: Person, tritons: list[Triton]) -> None:
    def kill_both() -> None:
        for triton in tritons:
            triton.kill()

    families, slabs = [process for triton in tritons for process in triton.family()], slabs_of(tritons)
    assert break_streams(paid, person, kill_both) == {"inference_error": STREAMS}
    until(lambda: not [process for process in families if lives(process)])
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(person.client.post, PATH, json=body(), timeout=300) for _ in range(8)]
        time.sleep(1)
        assert not any(one.done() for one in waiting)
        for triton in tritons:
            triton.start()
        assert {one.result().status_code for one in waiting} == {200}
    the_same_load_passes(paid, person, tritons)
    nothing_is_left(tritons, slabs)
