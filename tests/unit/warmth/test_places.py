"""Places: where requests go, who waits, who is next, and who is refused."""
from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from redis import Redis

from frontend.errors import ApiError, DeadlineExceeded, ModelUnavailable, SpendCap, Unavailable
from frontend.inference import Inference, ModelCard
from frontend.limits.slots import ClientLeft
from frontend.warmth import places as places_module
from frontend.warmth.places import Places, Visit
from frontend.warmth.records import Records
from frontend.warmth.scripts import Scripts
from tests.small_triton import SmallTriton
from tests.stack import REPOSITORY
from tests.valkey import Valkey

PATIENCE = 20.0


class Request:
    """One on a thread of its own: it comes, waits, stays until it is told to end, and leaves."""

    def __init__(self, places: Places, card: ModelCard, account: str = "ada", timeout: float = 60) -> None:
        self.visit: Visit | None = None
        self.error: Exception | None = None
        self.runs, self.come, self._over = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(places, card, account, timeout), daemon=True)
        self._thread.start()
        assert self.come.wait(PATIENCE)

    def _run(self, places: Places, card: ModelCard, account: str, timeout: float) -> None:
        try:
            with places.visit(card, account, timeout) as self.visit:
                self.come.set()
                self.visit.wait()
                self.runs.set()
                self._over.wait()
        except Exception as error:
            self.error = error
        self.come.set()

    @property
    def endpoint(self) -> str:
        assert self.visit is not None
        return self.visit.endpoint

    def end(self) -> None:
        self._over.set()
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def card_of(triton: SmallTriton, **changes: object) -> ModelCard:
    inference = Inference([triton.address])
    card = inference.model("tiny-llama")
    inference.close()
    return replace(card, **changes)  # type: ignore[arg-type]


def places_at(redis: Redis, *tritons: SmallTriton, load_timeout: float = 60) -> Places:
    return Places(redis, Inference([triton.address for triton in tritons]), load_timeout)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def error_of(refused: Request, kind: type[ApiError]) -> ApiError:
    refused.join()
    assert isinstance(refused.error, kind), refused.error
    return refused.error


def test_a_warm_model_is_used_at_once(redis: Redis, triton: SmallTriton) -> None:
    places = places_at(redis, triton)
    with places.visit(card_of(triton), "ada", 60) as visit:
        assert visit.wait(0)
        assert visit.endpoint == triton.address
        assert not Scripts(redis).close("tiny-llama", triton.address, 0)
    assert Scripts(redis).close("tiny-llama", triton.address, 0)


def test_a_cold_model_is_waited_for_and_all_come_in(redis: Redis, triton: SmallTriton) -> None:
    triton.states["tiny-llama_engine"] = "UNAVAILABLE"
    places = [places_at(redis, triton), places_at(redis, triton)]
    requests = [Request(places[number % 2], card_of(triton)) for number in range(10)]
    until(lambda: Records(redis).waiting(["tiny-llama"]) == {"tiny-llama": 10})
    assert not any(request.runs.is_set() for request in requests)
    triton.states["tiny-llama_engine"] = "READY"
    for request in requests:
        assert request.runs.wait(PATIENCE)
        assert request.visit is not None
        assert request.visit.cold > 0
        request.end()
    assert Records(redis).waiting(["tiny-llama"]) == {"tiny-llama": 0}


def test_a_failed_load_is_told_to_all_who_wait_and_to_those_who_come_too_early(
    redis: Redis, triton: SmallTriton
) -> None:
    triton.states["tiny-llama_engine"] = "UNAVAILABLE"
    places, records = places_at(redis, triton), Records(redis)
    requests = [Request(places, card_of(triton)) for _ in range(5)]
    failure = records.fail("tiny-llama", triton.address, "a part of its checkpoint is missing", 2, 1)
    records.report("tiny-llama", failure)
    errors = [error_of(request, ModelUnavailable) for request in [*requests, Request(places, card_of(triton))]]
    assert {error.message for error in errors} == {
        "The model 'tiny-llama' could not be started: a part of its checkpoint is missing. It is tried again later."}
    assert {error.headers["Retry-After"] for error in errors} <= {"1", "2"}
    time.sleep(2.1)
    later = Request(places, card_of(triton))  # it waits: somebody may try again
    time.sleep(1)
    assert later.error is None
    records.succeed("tiny-llama", triton.address, 1.0)
    triton.states["tiny-llama_engine"] = "READY"
    assert later.runs.wait(PATIENCE)
    later.end()


def test_who_waits_hears_of_the_spend_limit(redis: Redis, triton: SmallTriton) -> None:
    triton.states["tiny-llama_engine"] = "UNAVAILABLE"
    places, records = places_at(redis, triton), Records(redis)
    waits = Request(places, card_of(triton))
    records.pause("tiny-llama", 2)
    for request in (waits, Request(places, card_of(triton))):
        error = error_of(request, SpendCap)
        assert "tiny-llama" in error.message
        assert error.headers == {"x-should-retry": "false"}


def test_nobody_waits_for_a_load_without_end(redis: Redis, triton: SmallTriton) -> None:
    triton.states["tiny-llama_engine"] = "UNAVAILABLE"
    error = error_of(Request(places_at(redis, triton, load_timeout=0.5), card_of(triton)), ModelUnavailable)
    assert "did not become Warm" in error.message


def test_who_leaves_gives_up_its_place(redis: Redis, triton: SmallTriton) -> None:
    triton.states["tiny-llama_engine"] = "UNAVAILABLE"
    request = Request(places_at(redis, triton), card_of(triton))
    assert request.visit is not None
    request.visit.give_up()
    request.join()
    assert isinstance(request.error, ClientLeft)
    assert Records(redis).waiting(["tiny-llama"]) == {"tiny-llama": 0}


def test_a_model_that_is_unloaded_meanwhile_is_waited_for(redis: Redis, triton: SmallTriton) -> None:
    """The view of a process may be a second old; what Triton says when a request has its place counts."""
    places = places_at(redis, triton)
    with places.visit(card_of(triton), "ada", 60) as visit:
        assert visit.wait(0)
    triton.states["tiny-llama_engine"] = "UNAVAILABLE"
    request = Request(places, card_of(triton))
    time.sleep(0.5)
    assert not request.runs.is_set()
    triton.states["tiny-llama_engine"] = "READY"
    assert request.runs.wait(PATIENCE)
    request.end()


def test_a_closed_model_takes_nobody_until_it_is_opened(redis: Redis, triton: SmallTriton) -> None:
    assert Scripts(redis).close("tiny-llama", triton.address, 0)
    request = Request(places_at(redis, triton), card_of(triton))
    time.sleep(0.3)
    assert not request.runs.is_set()
    Records(redis).open("tiny-llama", triton.address)
    assert request.runs.wait(PATIENCE)
    request.end()


def test_the_least_loaded_triton_is_chosen_over_all_processes(redis: Redis, triton: SmallTriton) -> None:
    other = SmallTriton(["tiny-llama"])
    other.states["tiny-llama_engine"] = "READY"
    places = [places_at(redis, triton, other), places_at(redis, triton, other)]
    requests = [Request(places[number % 2], card_of(triton)) for number in range(8)]
    assert all(request.runs.wait(PATIENCE) for request in requests)
    assert [sum(request.endpoint == one.address for request in requests) for one in (triton, other)] == [4, 4]
    for request in requests:
        request.end()
    other.kill()


def test_a_drained_triton_gets_nothing_new(redis: Redis, triton: SmallTriton) -> None:
    other = SmallTriton(["tiny-llama"])
    other.states["tiny-llama_engine"] = "READY"
    places = places_at(redis, triton, other)
    Records(redis).drain(triton.address, True)
    requests = [Request(places, card_of(triton)) for _ in range(4)]
    assert all(request.runs.wait(PATIENCE) for request in requests)
    assert {request.endpoint for request in requests} == {other.address}
    Records(redis).drain(triton.address, False)
    back = Request(places, card_of(triton))
    assert back.runs.wait(PATIENCE)
    assert back.endpoint == triton.address
    for request in [*requests, back]:
        request.end()
    other.kill()


def test_a_triton_that_is_away_gets_nothing_and_comes_back(redis: Redis, triton: SmallTriton) -> None:
    other = SmallTriton(["tiny-llama"])
    other.states["tiny-llama_engine"] = "READY"
    places = places_at(redis, triton, other)
    for _ in range(2):
        with places.visit(card_of(triton), "ada", 60) as visit:
            assert visit.wait(0)
    other.kill()
    requests = [Request(places, card_of(triton)) for _ in range(4)]
    assert all(request.runs.wait(PATIENCE) for request in requests)
    assert {request.endpoint for request in requests} == {triton.address}
    other.start()
    other.states["tiny-llama_engine"] = "READY"

    def back() -> bool:
        with places.visit(card_of(triton), "ada", 60) as visit:
            return visit.wait(1) and visit.endpoint == other.address

    until(back)
    for request in requests:
        request.end()
    other.kill()


def test_an_ejected_engine_gets_nothing_until_it_answers_a_probe(redis: Redis, triton: SmallTriton) -> None:
    inference = Inference([triton.address])
    places = Places(redis, inference, 60)
    inference.endpoints.eject("tiny-llama", triton.address)
    request = Request(places, card_of(triton))
    assert request.runs.wait(PATIENCE)
    assert inference.endpoints.ejected() == []
    request.end()


def test_a_flood_delays_another_person_by_one_request(redis: Redis, triton: SmallTriton) -> None:
    """One runs at a time, ada has twenty waiting, and bob comes last: he is next."""
    places, card = places_at(redis, triton), card_of(triton, max_requests=1)
    first = Request(places, card, "ada")
    assert first.runs.wait(PATIENCE)
    flood = [Request(places, card, "ada") for _ in range(20)]
    bob = Request(places, card, "bob")
    first.end()
    assert bob.runs.wait(PATIENCE)
    assert not any(request.runs.is_set() for request in flood)
    bob.end()
    for request in flood:
        assert request.runs.wait(PATIENCE)
        request.end()


def test_two_people_take_turns(redis: Redis, triton: SmallTriton) -> None:
    places, card = places_at(redis, triton), card_of(triton, max_requests=1)
    first = Request(places, card, "ada")
    assert first.runs.wait(PATIENCE)
    queue = [*(Request(places, card, "ada") for _ in range(4)), *(Request(places, card, "bob") for _ in range(4))]
    order = []
    running = first
    while queue:
        running.end()
        until(lambda: any(request.runs.is_set() for request in queue))
        (running,) = (request for request in queue if request.runs.is_set())
        queue.remove(running)
        assert running.visit is not None
        order.append(running.visit.account_id)
    running.end()
    assert order == ["bob", "ada"] * 4


def test_beyond_the_queue_there_is_503_and_a_flooder_leaves_room_for_others(redis: Redis, triton: SmallTriton) -> None:
    places, card = places_at(redis, triton), card_of(triton, max_requests=1, max_queue=8)
    running = Request(places, card, "ada")
    assert running.runs.wait(PATIENCE)
    waiting = [Request(places, card, "ada") for _ in range(4)]
    assert error_of(Request(places, card, "ada"), Unavailable).headers["Retry-After"] == "2"
    others = [Request(places, card, name) for name in ("bob", "eve", "kim", "lee")]
    assert not any(request.error for request in [*waiting, *others])
    error_of(Request(places, card, "max"), Unavailable)
    for request in (running, *others, *waiting):
        assert request.runs.wait(PATIENCE)
        request.end()
    assert redis.zcard("strata:places:tiny-llama:queue") == 0


def test_a_request_whose_turn_would_come_too_late_is_refused_at_once(redis: Redis, triton: SmallTriton) -> None:
    places, card = places_at(redis, triton), card_of(triton, max_requests=1)
    redis.hset("strata:places:seconds", "tiny-llama", 10)
    running = Request(places, card)
    assert running.runs.wait(PATIENCE)
    waiting = [Request(places, card) for _ in range(2)]
    error = error_of(Request(places, card, timeout=25), Unavailable)
    assert error.headers["Retry-After"] == "5"
    assert "30 s" in error.message
    patient = Request(places, card, timeout=35)
    assert patient.error is None
    for request in (running, *waiting, patient):
        assert request.runs.wait(PATIENCE)
        request.end()


def test_nobody_waits_for_a_turn_without_end(redis: Redis, triton: SmallTriton) -> None:
    places, card = places_at(redis, triton), card_of(triton, max_requests=1)
    running = Request(places, card)
    assert running.runs.wait(PATIENCE)
    error_of(Request(places, card, timeout=0.3), DeadlineExceeded)
    running.end()


def test_redis_down_lets_nobody_in(own_valkey: Valkey, redis: Redis, triton: SmallTriton) -> None:
    places = places_at(redis, triton)
    own_valkey.kill()
    error_of(Request(places, card_of(triton)), Unavailable)


def test_a_redis_that_lost_everything_hears_who_is_at_work_and_waits(
    own_valkey: Valkey, redis: Redis, triton: SmallTriton
) -> None:
    places, card = places_at(redis, triton), card_of(triton, max_requests=1)
    first = Request(places, card)
    assert first.runs.wait(PATIENCE)
    second = Request(places, card)
    own_valkey.kill()
    own_valkey.start()
    records = Records(own_valkey.client)
    until(lambda: records.active("tiny-llama", triton.address) == 1)
    until(lambda: records.waiting(["tiny-llama"]) == {"tiny-llama": 1})
    assert not Scripts(own_valkey.client).close("tiny-llama", triton.address, 0)
    first.end()
    assert second.runs.wait(PATIENCE)
    second.end()


def test_the_places_of_a_killed_process_come_back(
    own_valkey: Valkey, redis: Redis, triton: SmallTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "LEASE", 2.0)
    monkeypatch.setattr(places_module, "BEAT", 0.2)
    code = (
        "import time; from frontend.inference import Inference; from frontend.limits.store import connect\n"
        "from frontend.warmth.places import Places; from dataclasses import replace\n"
        f"inference = Inference([{triton.address!r}]); card = replace(inference.model('tiny-llama'), max_requests=1)\n"
        f"with Places(connect({own_valkey.url!r}), inference, 60).visit(card, 'ada', 60) as visit:\n"
        "    visit.wait(); print('runs', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "runs"
    request = Request(places_at(redis, triton), card_of(triton, max_requests=1))
    time.sleep(4)  # two leases, in which the other process lives
    assert not request.runs.is_set()
    process.kill()
    process.wait()
    assert request.runs.wait(PATIENCE)
    request.end()


def test_nothing_is_left_behind(own_valkey: Valkey, redis: Redis, triton: SmallTriton) -> None:
    places, card = places_at(redis, triton), card_of(triton, max_requests=4)
    most = []

    def many(number: int) -> None:
        for _ in range(10):
            with places.visit(card, f"person {number % 5}", 60) as visit:
                visit.wait()
                most.append(own_valkey.client.scard(f"strata:places:tiny-llama@{triton.address}"))

    threads = [threading.Thread(target=many, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 4
    left = {key.decode() for key in own_valkey.client.scan_iter()}
    assert left <= {f"strata:places:{name}" for name in (
        "beats", "sequence", "seconds", "last-used", "last-asked", "tiny-llama:served")}
