"""The keeper at work: a real Valkey and database, and Tritons of the protocol alone."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from frontend.accounts.audit import SYSTEM
from frontend.db import Database
from frontend.db.policies import PolicyChange
from frontend.inference import Inference
from frontend.keeper import hands
from frontend.keeper.warmth import Warmth
from frontend.limits.store import connect
from frontend.warmth import policies, wishes
from frontend.warmth.records import Records
from frontend.warmth.scripts import Scripts, Ticket
from tests.small_triton import SmallTriton
from tests.valkey import Valkey

MODELS = ["smollm2-135m", "tiny-llama"]
PATIENCE = 20.0


@pytest.fixture
def redis(valkey: Valkey) -> Redis:
    valkey.client.flushall()
    return connect(valkey.url)


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    server = SmallTriton(MODELS, warm="on_demand")
    server.load_seconds = 0.1
    yield server
    server.kill()


@pytest.fixture
def keeper(database: Database, redis: Redis, triton: SmallTriton) -> Iterator[Callable[..., Warmth]]:
    made: list[Warmth] = []

    def make(*others: SmallTriton, max_loaded: int | None = None, may_load: bool = True) -> Warmth:
        addresses = [one.address for one in (triton, *others)]
        made.append(Warmth(database, redis, Inference(addresses), MODELS, max_loaded, lambda model: may_load, 0.25))
        return made[-1]

    yield make
    for warmth in made:  # what it began would log into the tests after this
        wait_until(lambda warmth=warmth: not warmth._hands.busy())


def rounds(keeper: Warmth, until: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline
        keeper.round()
        time.sleep(0.05)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def some_rounds(keeper: Warmth) -> None:
    for _ in range(10):
        keeper.round()
        time.sleep(0.05)


class Waiting:
    """A request that waits for a model, as a frontend would have it."""

    def __init__(self, redis: Redis, model: str) -> None:
        self.scripts = Scripts(redis)
        self.ticket = Ticket(f"here:{model}", model, "ada", "")
        self.scripts.keep("here", [])
        self.sequence = self.scripts.enter("here", self.ticket, 4, 100, 60, []).sequence

    def come_in(self, triton: SmallTriton) -> None:
        self.scripts.look("here", self.ticket.model, 4, [self.ticket.name], [triton.address])

    def leave(self) -> None:
        self.scripts.leave("here", self.ticket, 4, None, [])


def used_ago(redis: Redis, model: str, triton: SmallTriton, seconds: float) -> None:
    """Say so, once the keeper has written down that it loaded the model, which counts as a use."""
    wait_until(lambda: Records(redis).estimate(model, "cold") is not None)
    redis.hset("strata:places:last-used", f"{model}@{triton.address}", int(Records(redis).now() - seconds))


def test_who_waits_gets_its_model_and_the_load_is_remembered(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton
) -> None:
    warmth, records = keeper(), Records(redis)
    some_rounds(warmth)
    assert triton.loads == []
    assert records.estimate("tiny-llama", "cold") is None
    waiting = Waiting(redis, "tiny-llama")
    rounds(warmth, lambda: triton.states.get("tiny-llama") == "READY")  # the ensemble too
    waiting.come_in(triton)
    some_rounds(warmth)
    assert triton.loads == ["tiny-llama"]
    assert 0 < (records.estimate("tiny-llama", "cold") or 0) < 5
    waiting.leave()


def test_an_engine_that_triton_never_lets_go_of_gets_another_beside_it(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.keeper.warmth.UNLOADING", 3.0)
    warmth = keeper()
    triton.states["tiny-llama_engine"] = "UNLOADING"
    Waiting(redis, "tiny-llama")
    some_rounds(warmth)
    assert triton.loads == []
    rounds(warmth, lambda: triton.state("tiny-llama") == "READY")
    assert triton.loads == ["tiny-llama"]


def test_a_failed_load_is_tried_again_later_and_heals(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hands, "FIRST_PAUSE", 0.5)
    warmth, records = keeper(), Records(redis)
    triton.broken["tiny-llama"] = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    Waiting(redis, "tiny-llama")
    rounds(warmth, lambda: len(triton.loads) == 3)
    rounds(warmth, lambda: records.failures()["tiny-llama"].attempt == 3)
    assert records.failures()["tiny-llama"].reason == "there is not enough memory for it"
    triton.broken.clear()
    rounds(warmth, lambda: triton.state("tiny-llama") == "READY")
    rounds(warmth, lambda: not records.failures() and not records.breakers())


def test_where_a_load_fails_at_one_triton_the_other_is_tried_before_anybody_hears_of_it(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton
) -> None:
    other = SmallTriton(MODELS, warm="on_demand")
    triton.broken["tiny-llama"] = "CUDA out of memory"
    warmth = keeper(other)
    Waiting(redis, "tiny-llama")
    rounds(warmth, lambda: other.state("tiny-llama") == "READY")
    assert triton.loads == other.loads == ["tiny-llama"]
    assert Records(redis).failures() == {}
    other.kill()


@pytest.mark.parametrize("warm", ["on_demand", "always"])
def test_where_a_load_fails_at_both_tritons_who_waits_hears_of_it_though_the_first_may_be_tried_again(
    keeper: Callable[..., Warmth], database: Database, redis: Redis, triton: SmallTriton,
    monkeypatch: pytest.MonkeyPatch, warm: str
) -> None:
    """Loads take longer than the pause after one that failed."""
    monkeypatch.setattr(hands, "FIRST_PAUSE", 0.2)
    policies.set_policy(database, SYSTEM, "tiny-llama", PolicyChange(warm=warm))
    other = SmallTriton(MODELS)
    for one in (triton, other):
        one.broken["tiny-llama"] = "CUDA out of memory"
        one.load_seconds = 1.0
    warmth, records = keeper(other), Records(redis)
    waiting = Waiting(redis, "tiny-llama")
    rounds(warmth, records.failures)
    assert records.failures()["tiny-llama"].sequence > waiting.sequence
    assert sorted((len(triton.loads), len(other.loads))) in ([1, 1], [1, 2])
    other.kill()


def test_where_a_load_fails_and_the_other_triton_is_full_who_waits_hears_of_it(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton
) -> None:
    other = SmallTriton(MODELS, warm="on_demand")
    other.states["smollm2-135m_engine"] = other.states["smollm2-135m"] = "READY"
    warmth, records = keeper(other, max_loaded=1), Records(redis)
    some_rounds(warmth)
    working = Waiting(redis, "smollm2-135m")
    working.come_in(other)
    triton.broken["tiny-llama"] = "CUDA out of memory"
    waiting = Waiting(redis, "tiny-llama")
    rounds(warmth, records.failures)
    assert records.failures()["tiny-llama"].sequence > waiting.sequence
    assert (triton.loads, other.loads, other.unloads) == (["tiny-llama"], [], [])
    other.kill()


def test_a_policy_that_an_admin_changed_counts(
    keeper: Callable[..., Warmth], database: Database, triton: SmallTriton, redis: Redis
) -> None:
    policies.set_policy(database, SYSTEM, "tiny-llama", PolicyChange(warm="always"))
    warmth = keeper()
    rounds(warmth, lambda: triton.state("tiny-llama") == "READY")
    used_ago(redis, "tiny-llama", triton, 86_400)
    some_rounds(warmth)
    assert triton.unloads == []
    policies.set_policy(database, SYSTEM, "tiny-llama", PolicyChange(warm="on_demand", idle_minutes=60))
    rounds(warmth, lambda: triton.unloads == ["tiny-llama"])


def test_a_warm_window_keeps_a_model_warm(keeper: Callable[..., Warmth], database: Database, triton: SmallTriton
                                          ) -> None:
    policies.set_policy(database, SYSTEM, "tiny-llama", PolicyChange(warm_windows=("00:00-24:00 UTC",)))
    rounds(keeper(), lambda: triton.state("tiny-llama") == "READY")


def test_the_idle_model_makes_room_and_a_busy_one_never(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton
) -> None:
    warmth = keeper(max_loaded=1)
    first = Waiting(redis, "tiny-llama")
    rounds(warmth, lambda: triton.states.get("tiny-llama") == "READY")
    first.come_in(triton)
    used_ago(redis, "tiny-llama", triton, 60)
    Waiting(redis, "smollm2-135m")
    some_rounds(warmth)
    assert triton.unloads == []
    first.leave()
    used_ago(redis, "tiny-llama", triton, 60)
    rounds(warmth, lambda: triton.state("smollm2-135m") == "READY")
    assert triton.unloads == ["tiny-llama"]


def test_what_is_idle_makes_room_and_goes_though_redis_lost_when_it_was_used(
    keeper: Callable[..., Warmth], database: Database, redis: Redis, triton: SmallTriton,
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.keeper.decide.LEAST_IDLE", 1.0)
    warmth = keeper(max_loaded=1)
    Records(redis).ask("tiny-llama", "load")
    rounds(warmth, lambda: triton.states.get("tiny-llama") == "READY")
    redis.flushall()
    Waiting(redis, "smollm2-135m")
    rounds(warmth, lambda: triton.state("smollm2-135m") == "READY")
    assert triton.unloads == ["tiny-llama"]
    redis.flushall()
    policies.set_policy(database, SYSTEM, "smollm2-135m", PolicyChange(idle_minutes=1 / 60))
    rounds(warmth, lambda: triton.unloads == ["tiny-llama", "smollm2-135m"])


def test_wishes_of_an_admin(keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton) -> None:
    warmth, records = keeper(), Records(redis)
    records.ask("tiny-llama", "load")
    rounds(warmth, lambda: triton.state("tiny-llama") == "READY" and not records.asked())
    records.ask("tiny-llama", "unload")
    used_ago(redis, "tiny-llama", triton, 60)
    rounds(warmth, lambda: triton.unloads == ["tiny-llama"] and not records.asked())


def test_a_wish_that_a_policy_has_come_to_forbid_is_forgotten(
    keeper: Callable[..., Warmth], database: Database, redis: Redis, triton: SmallTriton
) -> None:
    """Else it would be granted once the policy allows it, which may be months later."""
    triton.states["tiny-llama_engine"] = "READY"
    policies.set_policy(database, SYSTEM, "tiny-llama", PolicyChange(warm="always"))
    records = Records(redis)
    records.ask("tiny-llama", "unload")
    rounds(keeper(), lambda: not records.asked())
    assert triton.unloads == []


def test_a_drained_triton_loses_its_models_and_gets_none(
    keeper: Callable[..., Warmth], database: Database, redis: Redis, triton: SmallTriton
) -> None:
    warmth, records = keeper(), Records(redis)
    records.ask("tiny-llama", "load")
    rounds(warmth, lambda: triton.state("tiny-llama") == "READY" and not records.asked())
    wishes.drain(database, records, SYSTEM, triton.address, True)
    used_ago(redis, "tiny-llama", triton, 60)
    rounds(warmth, lambda: triton.unloads == ["tiny-llama"])
    Waiting(redis, "tiny-llama")
    some_rounds(warmth)
    assert triton.loads == ["tiny-llama"]


def test_a_drained_triton_stays_drained_when_redis_loses_everything(
    keeper: Callable[..., Warmth], database: Database, redis: Redis, triton: SmallTriton
) -> None:
    policies.set_policy(database, SYSTEM, "tiny-llama", PolicyChange(warm="always"))
    records = Records(redis)
    wishes.drain(database, records, SYSTEM, triton.address, True)
    wishes.drain(database, records, SYSTEM, triton.address, True)
    warmth = keeper()
    some_rounds(warmth)
    redis.flushall()
    rounds(warmth, records.drained)
    redis.flushall()
    warmth = keeper()  # one that starts anew
    some_rounds(warmth)
    assert records.drained() == {triton.address}
    assert triton.loads == []
    wishes.drain(database, records, SYSTEM, triton.address, False)
    rounds(warmth, lambda: triton.state("tiny-llama") == "READY")
    assert records.drained() == set()


def test_the_spend_limit_is_told_to_those_who_wait(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton
) -> None:
    Waiting(redis, "tiny-llama")
    warmth, records = keeper(may_load=False), Records(redis)
    rounds(warmth, lambda: "tiny-llama" in records.failures())
    assert "Spend limit" in records.failures()["tiny-llama"].reason
    assert triton.loads == []


def test_what_a_dead_keeper_closed_is_opened_again(
    keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton
) -> None:
    triton.states["tiny-llama_engine"] = "READY"
    assert Scripts(redis).close("tiny-llama", triton.address, 0) or Scripts(redis).close(
        "tiny-llama", triton.address, 0)
    rounds(keeper(), lambda: Records(redis).closed() == set())


def test_an_engine_that_somebody_else_loaded_gets_its_ensemble(
    keeper: Callable[..., Warmth], triton: SmallTriton
) -> None:
    triton.states["tiny-llama_engine"] = "READY"
    rounds(keeper(), lambda: triton.states.get("tiny-llama") == "READY")
    assert triton.loads == []


def test_a_triton_that_is_away_is_waited_for(keeper: Callable[..., Warmth], redis: Redis, triton: SmallTriton) -> None:
    triton.kill()
    warmth: Any = keeper()
    Waiting(redis, "tiny-llama")
    some_rounds(warmth)
    assert Records(redis).failures() == {}
    triton.start()
    rounds(warmth, lambda: triton.state("tiny-llama") == "READY")
