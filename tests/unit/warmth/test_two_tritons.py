"""Two Tritons of the protocol alone behind the whole frontend, and one person's flood before another's request."""
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from frontend.warmth.records import Records
from tests.paid import STREAMS, Paid, Person, streams, until
from tests.small_triton import SmallTriton


@pytest.fixture(scope="module")
def tritons() -> Iterator[list[SmallTriton]]:
    running = [SmallTriton(["tiny-llama"]) for _ in range(2)]
    yield running
    for triton in running:
        triton.kill()


@pytest.fixture(scope="module")
def paid(tritons: list[SmallTriton], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paid]:
    folder = tmp_path_factory.mktemp("paid")
    running = Paid(folder, f"sqlite:///{folder / 'strata.db'}", "|".join(triton.address for triton in tritons),
                   STRATA_REQUESTS_PER_MINUTE="100000", STRATA_ACTIVE_REQUESTS="300", STRATA_THREADS="600")
    yield running
    running.stop()


@pytest.fixture
def person(paid: Paid, tritons: list[SmallTriton]) -> Person:
    for triton in tritons:
        triton.token_seconds = 0.0
        until(lambda triton=triton: triton.state("tiny-llama") == "READY")
    person = paid.person(10_000_000)
    # Workers whose view is of a moment ago hear of it with their first requests.
    until(lambda: streams(person, lambda: None, 1) == {"whole": STREAMS})
    return person


def test_killing_one_of_two_loses_only_its_streams_and_the_same_load_passes_afterwards(
    paid: Paid, person: Person, tritons: list[SmallTriton]
) -> None:
    records = Records(paid.valkey.client)
    for triton in tritons:
        triton.token_seconds = 0.05
    shares: list[int] = []

    def kill() -> None:
        shares.extend(records.active("tiny-llama", triton.address) for triton in tritons)
        tritons[0].kill()

    assert streams(person, kill, 100) == {"whole": STREAMS // 2, "inference_error": STREAMS // 2}
    assert shares == [STREAMS // 2, STREAMS // 2]
    tritons[1].token_seconds = 0.0
    with ThreadPoolExecutor(16) as pool:
        assert {answer.status_code for answer in pool.map(lambda _: person.ask(), range(64))} == {200}
    tritons[0].start()
    until(lambda: tritons[0].state("tiny-llama") == "READY")
    assert streams(person, lambda: None, 20) == {"whole": STREAMS}
    assert paid.settled(person).held == 0
    assert [records.active("tiny-llama", triton.address) for triton in tritons] == [0, 0]


def test_a_drained_triton_finishes_what_it_has_and_is_unloaded(
    paid: Paid, person: Person, tritons: list[SmallTriton]
) -> None:
    for triton in tritons:
        triton.token_seconds = 0.05
    assert streams(person, lambda: paid.drain(tritons[0].address, True), 60) == {"whole": STREAMS}
    until(lambda: tritons[0].state("tiny-llama") == "UNAVAILABLE")
    assert person.ask().status_code == 200
    paid.drain(tritons[0].address, False)
    until(lambda: tritons[0].state("tiny-llama") == "READY")


@pytest.fixture
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Paid, SmallTriton]]:
    """A model that runs one request at a time."""
    triton = SmallTriton(["tiny-llama"], max_requests=1)
    folder = tmp_path_factory.mktemp("narrow")
    running = Paid(folder, f"sqlite:///{folder / 'strata.db'}", triton.address, STRATA_REQUESTS_PER_MINUTE="100000",
                   STRATA_ACTIVE_REQUESTS="300", STRATA_THREADS="600")
    yield running, triton
    running.stop()
    triton.kill()


def test_200_waiting_requests_of_one_person_delay_another_by_one(narrow: tuple[Paid, SmallTriton]) -> None:
    paid, triton = narrow
    flooder, other = paid.person(10_000_000), paid.person(10_000)
    assert other.ask(max_tokens=1).status_code == 200
    assert flooder.ask(max_tokens=1).status_code == 200
    triton.token_seconds = 0.1
    done: list[int] = []

    def flood(_: int) -> None:
        assert flooder.ask(max_tokens=4).status_code == 200
        done.append(1)

    with ThreadPoolExecutor(200) as pool:
        flooding = [pool.submit(flood, number) for number in range(200)]
        until(lambda: Records(paid.valkey.client).waiting(["tiny-llama"])["tiny-llama"] >= 190)
        for _ in range(3):
            before = len(done)
            assert other.ask(max_tokens=4).status_code == 200
            # The one that ran, and the one whose answer came while the other's did.
            assert len(done) - before <= 2
        triton.token_seconds = 0.0
        for one in flooding:
            one.result()
    assert triton.most_active == 1
