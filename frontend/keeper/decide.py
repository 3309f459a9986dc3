"""What the keeper does next about models, decided from what it sees alone: no clock, no Redis, no Triton."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from frontend.inference.repository import State
from frontend.warmth.records import Failure

#: Seconds that a model is never unloaded after its last request, so that two that need the same room take turns slowly
#: and a Redis that lost everything hears first who is at work.
LEAST_IDLE = 5.0
#: A model, and the address of a Triton.
Place = tuple[str, str]


@dataclass(frozen=True)
class Model:
    """A model as the keeper sees it. `kept`: it is to be Warm though nobody asks. `idle_seconds`: after so long without
    a request it is unloaded. `wish`: what an admin asked for, "load", "unload" or nothing. `may_load`: the Spend limit
    allows it."""

    id: str
    kept: bool
    idle_seconds: float
    capacity: int
    waiting: int
    states: Mapping[str, State]
    wish: str = ""
    may_load: bool = True


@dataclass(frozen=True)
class Seen:
    """One look at everything. `idle`: seconds since each place was last used; `active`: requests there now; `broken`:
    its last load failed, and it is too early to try again; `busy`: something is being done about it; `failed`: how the
    last load ended where it failed."""

    models: Mapping[str, Model]
    active: Mapping[Place, int]
    idle: Mapping[Place, float]
    broken: frozenset[Place]
    busy: frozenset[Place]
    drained: frozenset[str]
    max_loaded: int | None
    failed: Mapping[Place, Failure] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """Something to do. An unloading only happens if the place was idle for so many seconds by then."""

    what: Literal["load", "unload"]
    model: str
    address: str
    idle_seconds: float = 0.0


def decide(seen: Seen) -> list[Step]:
    """All that is to be done now; each place is in it once at most."""
    steps: dict[Place, Step] = {}
    room = _Room(seen)
    for model in sorted(seen.models.values(), key=lambda model: -model.waiting):
        for address in _wanted_at(seen, model):
            victim = room.take(address)
            if victim is None:
                steps[model.id, address] = Step("load", model.id, address)
            elif victim:
                steps[victim, address] = Step("unload", victim, address, LEAST_IDLE)
    for step in _idle(seen):
        steps.setdefault((step.model, step.address), step)
    return list(steps.values())


def given_up(seen: Seen, model: Model) -> Failure | None:
    """What those hear who wait for a model that no Triton will start for them now; None while one may.

    Only those hear it who came before its sequence: for whom every Triton that could load the model now has failed
    since. One that is away, drained, full, or waits after a failure can't.
    """
    here = {address: state for address, state in model.states.items() if address not in seen.drained}
    if not model.may_load or any(
            state in ("warm", "loading", "unloading") or (model.id, address) in seen.busy
            for address, state in here.items()):
        return None
    failed = {address: failure for address in model.states
              if (failure := seen.failed.get((model.id, address))) and not failure.excused}
    takes = [address for address, state in here.items() if state == "cold" and _takes(seen, address)]
    next_ = [address for address in takes if (model.id, address) not in seen.broken]
    if not failed or any(address not in failed for address in next_):
        return None
    last = max(failed.values(), key=lambda failure: failure.sequence)
    again = [failed[address].until for address in takes if address in failed]
    return replace(last, sequence=min([last.sequence, *(failed[address].sequence for address in next_)]),
                   until=min(again, default=last.until))


def _wanted_at(seen: Seen, model: Model) -> Iterator[str]:
    """Where a model is to be loaded that is not."""
    open_ = [address for address, state in model.states.items() if address not in seen.drained and state != "away"]
    free = [address for address in open_ if model.states[address] == "cold"
            and (model.id, address) not in seen.busy | seen.broken]
    if not model.may_load or not free:
        return
    if model.kept:
        yield from free
        return
    coming = any(model.states[address] == "loading" or (model.id, address) in seen.busy for address in open_)
    warm = [address for address in open_ if model.states[address] == "warm"]
    full = all(seen.active.get((model.id, address), 0) >= model.capacity for address in warm)
    if not coming and ((model.waiting and full) or (model.wish == "load" and not warm)):
        # Where it would not drive out another, if there is such a place, and else where another can go.
        yield min(free, key=lambda address: (
            _crowded(seen, address), not _takes(seen, address), _loaded(seen, address)))


def _idle(seen: Seen) -> Iterator[Step]:
    for model in seen.models.values():
        for address, state in model.states.items():
            if state != "warm" or (model.id, address) in seen.busy:
                continue
            if address in seen.drained or (model.wish == "unload" and not model.kept):
                yield Step("unload", model.id, address, LEAST_IDLE)
            elif not model.kept and seen.idle.get((model.id, address), 0.0) >= model.idle_seconds:
                yield Step("unload", model.id, address, max(model.idle_seconds, LEAST_IDLE))


def _loaded(seen: Seen, address: str) -> int:
    """How many models a Triton has, or is about to have."""
    return sum(1 for model in seen.models.values() if address in model.states and (
        model.states[address] in ("warm", "loading", "unloading") or (model.id, address) in seen.busy))


def _crowded(seen: Seen, address: str) -> bool:
    return seen.max_loaded is not None and _loaded(seen, address) >= seen.max_loaded


def _victims(seen: Seen, address: str) -> list[str]:
    """The models that may be unloaded to make room at a Triton; the one used longest ago is first."""
    idle = [model.id for model in seen.models.values()
            if model.states.get(address) == "warm" and not model.kept and not model.waiting
            and not seen.active.get((model.id, address), 0)
            and seen.idle.get((model.id, address), 0.0) >= LEAST_IDLE]
    return sorted(idle, key=lambda model: -seen.idle.get((model, address), 0.0))


def _takes(seen: Seen, address: str) -> bool:
    """Whether a Triton has room for a model, or makes some."""
    going = any(model.states.get(address) == "unloading"
                or (model.states.get(address) == "warm" and (model.id, address) in seen.busy)
                for model in seen.models.values())
    return not _crowded(seen, address) or going or bool(_victims(seen, address))


class _Room:
    """How much room each Triton has, as it is given away."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._taken: dict[str, int] = {}

    def take(self, address: str) -> str | None:
        """None if there is room, which is taken then. Otherwise the model that has to go first, or "" if none can."""
        seen = self._seen
        if seen.max_loaded is None or _loaded(seen, address) + self._taken.get(address, 0) < seen.max_loaded:
            self._taken[address] = self._taken.get(address, 0) + 1
            return None
        going = any((model.id, address) in seen.busy or model.states.get(address) == "unloading"
                    for model in seen.models.values())
        return "" if going else next(iter(_victims(seen, address)), "")
