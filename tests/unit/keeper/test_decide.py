"""What the keeper does about models, from what it sees."""
from __future__ import annotations

from dataclasses import replace

from frontend.inference.repository import State
from frontend.keeper.decide import LEAST_IDLE, Model, Place, Seen, Step, decide, given_up
from frontend.warmth.records import Failure

A, B = "a:1", "b:1"


def model(name: str = "m", kept: bool = False, waiting: int = 0, **states: State) -> Model:
    """A model on the Tritons A and B, or on those that are named in lower case."""
    return Model(name, kept, 600.0, 4, waiting, {f"{place}:1": state for place, state in states.items()})


def seen(*models: Model, max_loaded: int | None = None) -> Seen:
    return Seen({one.id: one for one in models}, {}, {}, frozenset(), frozenset(), frozenset(), max_loaded)


def test_a_cold_model_is_loaded_once_somebody_waits() -> None:
    assert decide(seen(model(a="cold"))) == []
    assert decide(seen(model(waiting=50, a="cold"))) == [Step("load", "m", A)]
    assert decide(seen(model(waiting=50, a="loading"))) == []
    busy = replace(seen(model(waiting=50, a="cold")), busy=frozenset({("m", A)}))
    assert decide(busy) == []


def test_one_load_is_enough_for_those_who_wait() -> None:
    assert len(decide(seen(model(waiting=50, a="cold", b="cold")))) == 1
    assert decide(seen(model(waiting=50, a="loading", b="cold"))) == []
    assert decide(seen(model(waiting=50, a="away", b="cold"))) == [Step("load", "m", B)]


def test_a_second_engine_is_loaded_where_the_first_is_full() -> None:
    now = replace(seen(model(waiting=1, a="warm", b="cold")), active={("m", A): 4})
    assert decide(now) == [Step("load", "m", B)]
    assert decide(replace(now, active={("m", A): 3})) == []


def test_a_model_that_is_always_warm_is_loaded_everywhere() -> None:
    assert decide(seen(model(kept=True, a="cold", b="cold"))) == [Step("load", "m", A), Step("load", "m", B)]
    assert decide(replace(seen(model(kept=True, a="cold", b="cold")), drained=frozenset({A}))) == [Step("load", "m", B)]


def test_a_breaker_keeps_a_load_from_one_triton_and_not_from_another() -> None:
    broken = replace(seen(model(waiting=1, a="cold", b="cold")), broken=frozenset({("m", A)}))
    assert decide(broken) == [Step("load", "m", B)]
    assert decide(replace(broken, broken=frozenset({("m", A), ("m", B)}))) == []


def test_the_spend_limit_forbids_loads() -> None:
    assert decide(seen(replace(model(waiting=1, kept=True, a="cold"), may_load=False))) == []


def test_an_idle_model_is_unloaded_and_one_that_is_kept_is_not() -> None:
    idle = replace(seen(model(a="warm")), idle={("m", A): 600.0})
    assert decide(idle) == [Step("unload", "m", A, 600.0)]
    assert decide(replace(idle, idle={("m", A): 599.0})) == []
    assert decide(replace(idle, models={"m": model(kept=True, a="warm")})) == []
    assert decide(replace(idle, busy=frozenset({("m", A)}))) == []


def test_what_is_drained_or_unwished_goes_as_soon_as_nothing_runs_there() -> None:
    assert decide(replace(seen(model(kept=True, a="warm")), drained=frozenset({A}))) == [
        Step("unload", "m", A, LEAST_IDLE)]
    wish = replace(model(a="warm"), wish="unload")
    assert decide(seen(wish)) == [Step("unload", "m", A, LEAST_IDLE)]
    assert decide(seen(replace(wish, kept=True))) == []


def test_a_wish_loads() -> None:
    assert decide(seen(replace(model(a="cold", b="cold"), wish="load"))) == [Step("load", "m", A)]
    assert decide(seen(replace(model(a="warm", b="cold"), wish="load"))) == []


def test_where_there_is_no_room_the_idle_model_used_longest_ago_goes() -> None:
    others = [model("old", a="warm"), model("older", a="warm")]
    crowded = replace(seen(model(waiting=1, a="cold"), *others, max_loaded=2),
                      idle={("old", A): 20.0, ("older", A): 30.0})
    assert decide(crowded) == [Step("unload", "older", A, LEAST_IDLE)]
    going = replace(crowded, busy=frozenset({("older", A)}))
    assert decide(going) == []


def test_a_busy_model_never_makes_room() -> None:
    crowded = replace(seen(model(waiting=1, a="cold"), model("busy", a="warm"), max_loaded=1),
                      idle={("busy", A): 30.0}, active={("busy", A): 1})
    assert decide(crowded) == []
    awaited = replace(crowded, active={}, models={**crowded.models, "busy": model("busy", waiting=1, a="warm")})
    assert decide(awaited) == []
    kept = replace(crowded, active={}, models={**crowded.models, "busy": model("busy", kept=True, a="warm")})
    assert decide(kept) == []
    just_used = replace(crowded, active={}, idle={("busy", A): LEAST_IDLE - 1})
    assert decide(just_used) == []


def test_a_load_goes_where_it_drives_nobody_out() -> None:
    other = model("other", a="warm", b="cold")
    now = replace(seen(model(waiting=1, a="cold", b="cold"), other, max_loaded=1), idle={("other", A): 30.0})
    assert decide(now) == [Step("load", "m", B)]


def test_two_loads_do_not_share_the_last_room() -> None:
    steps = decide(seen(model("m", waiting=2, a="cold"), model("n", waiting=1, a="cold"), max_loaded=1))
    assert steps == [Step("load", "m", A)]


def test_a_load_goes_where_room_can_be_made() -> None:
    others = [model("busy", a="warm", b="cold"), model("other", a="cold", b="warm")]
    now = replace(seen(model(waiting=1, a="cold", b="cold"), *others, max_loaded=1),
                  idle={("other", B): 30.0}, active={("busy", A): 1})
    assert decide(now) == [Step("unload", "other", B, LEAST_IDLE)]


def failed(now: Seen, broken: bool = False, **sequences: int) -> Seen:
    """What is seen after loads of m failed, in the order of their sequences; it is too early for others if `broken`."""
    failures: dict[Place, Failure] = {("m", f"{place}:1"): Failure(place, sequence, 1000.0 + sequence, 1)
                                      for place, sequence in sequences.items()}
    return replace(now, failed=failures, broken=frozenset(failures) if broken else frozenset())


def test_who_waits_hears_once_every_triton_has_failed_since() -> None:
    both = seen(model(waiting=1, a="cold", b="cold"))
    assert given_up(both, both.models["m"]) is None
    only_a = failed(both, a=5)
    assert given_up(only_a, both.models["m"]) is None
    # A may be tried again by the time B fails: those who came before its failure have no more to hope for.
    heard = given_up(failed(both, a=5, b=9), both.models["m"])
    assert heard == Failure("b", 5, 1005.0, 1)
    # Neither is tried now: so all do.
    assert given_up(failed(both, broken=True, a=5, b=9), both.models["m"]) == Failure("b", 9, 1005.0, 1)


def test_a_triton_that_is_away_drained_or_full_is_no_hope_and_one_that_loads_is() -> None:
    away = failed(seen(model(waiting=1, a="cold", b="away")), broken=True, a=5)
    told = Failure("a", 5, 1005.0, 1)
    assert given_up(away, away.models["m"]) == told
    both = failed(seen(model(waiting=1, a="cold", b="cold")), broken=True, a=5)
    assert given_up(replace(both, drained=frozenset({B})), both.models["m"]) == told
    m, busy = both.models["m"], model("busy", a="cold", b="warm")
    full = replace(both, models={"m": m, "busy": busy}, max_loaded=1, active={("busy", B): 1})
    assert given_up(full, m) == told
    assert given_up(replace(full, active={}, idle={("busy", B): LEAST_IDLE}), m) is None
    assert given_up(replace(both, busy=frozenset({("m", B)})), m) is None
    for state in ("loading", "warm", "unloading"):
        now = model(waiting=1, a="cold", b=state)
        assert given_up(replace(both, models={"m": now}), now) is None


def test_nobody_hears_of_a_triton_that_went_away_while_it_loaded() -> None:
    now = failed(seen(model(waiting=1, a="away")), broken=True, a=5)
    excused = replace(now, failed={place: replace(one, excused=True) for place, one in now.failed.items()})
    assert given_up(excused, now.models["m"]) is None
    assert given_up(now, now.models["m"]) == Failure("a", 5, 1005.0, 1)
