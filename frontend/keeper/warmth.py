"""Keeps models as Warm as they are to be: looks at everything, decides, and lets its hands load and unload."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime

import structlog
from redis import Redis

from frontend.db import Database, drains
from frontend.db.policies import PolicyChange, policies
from frontend.errors import ApiError
from frontend.inference import Inference, ModelCard
from frontend.inference.repository import State
from frontend.keeper.decide import Model, Place, Seen, decide, given_up
from frontend.keeper.hands import Hands
from frontend.keeper.leader import Leader
from frontend.warmth.policies import policy_of
from frontend.warmth.records import Records
from frontend.warmth.scripts import Scripts

log = structlog.get_logger()

#: Seconds that Triton may take to unload an engine, until another is loaded beside it.
UNLOADING = 60.0
#: Seconds between two looks at what admins have changed of policies and drained Tritons.
POLICIES_EVERY = 2.0
#: Seconds after which somebody who asked for a model that may not be loaded may ask again.
_PAUSED_RETRY = 5.0


class Warmth:
    """What one keeper knows of the models."""

    def __init__(
        self, database: Database, redis: Redis, inference: Inference, models: Collection[str],
        max_loaded: int | None, may_load: Callable[[str], bool], every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_load` says whether a model may be loaded now, or the Spend limit forbids it; `every` is the seconds
        between two rounds."""
        self._database, self._inference, self._models = database, inference, models
        self._max_loaded, self._may_load, self._clock = max_loaded, may_load, clock
        self._records = Records(redis)
        self._leader = Leader(redis, every)
        self._hands = Hands(inference, self._records, Scripts(redis))
        self._reachable = True
        self._changes: dict[str, PolicyChange] = {}
        self._drained: set[str] = set()
        self._next_policies = 0.0
        #: Since when each place is being unloaded.
        self._unloading: dict[Place, float] = {}
        self._seen: Seen | None = None

    def round(self) -> None:
        """Look once and begin what is to be done. Raises Unavailable, or redis's errors."""
        if not self._leader.works():
            self._seen = None
            return
        cards = self._cards()
        if not cards:
            return
        states = self._inference.repository.states([card.id for card in cards])
        self._count_out(states)
        self._open_what_a_dead_keeper_closed(states)
        seen = self._seen = self._look(cards, states)
        self._mend(states)
        for step in decide(seen):
            if step.what == "load":
                before = seen.failed.get((step.model, step.address))
                self._hands.load((step.model, step.address), before.attempt + 1 if before else 1)
            else:
                self._hands.unload((step.model, step.address), step.idle_seconds)
        self._answer(seen)

    def look_for_life(self) -> None:
        """Replace processes that were killed. May take seconds for each."""
        seen = self._seen
        if seen is None:
            return
        for model in seen.models.values():
            for address, state in model.states.items():
                place = (model.id, address)
                if state == "away" or place in self._hands.busy():
                    continue
                if not self._inference.repository.tokenizer_alive(*place):
                    log.error("tokenizer_process_gone", model=model.id, triton=address)
                    self._hands.restart_tokenizer(place)
                elif state == "warm" and not self._inference.repository.alive(*place):
                    self._hands.replace(place)

    def _cards(self) -> list[ModelCard]:
        try:
            found = [card for card in self._inference.models() if card.id in self._models]
        except ApiError as error:
            if self._reachable:
                log.warning("triton_unreachable", reason=error.message)
            self._reachable = False
            return []
        if not self._reachable:
            log.info("triton_reachable")
        self._reachable = True
        return found

    def _look(self, cards: list[ModelCard], states: dict[str, dict[str, State]]) -> Seen:
        now, records = datetime.now(UTC), self._records
        drained = self._read_wishes(records.drained())
        busy = self._hands.busy()  # before the failures: what fails from here on still counts as being done
        failed = {_place(name): failure for name, failure in records.breakers().items()}
        redis_now, last_used, wishes = records.now(), records.last_used(), records.asked()
        waiting = records.waiting([card.id for card in cards])
        models = {}
        for card in cards:
            policy = policy_of(card.warm, card.idle_minutes, card.warm_windows, self._changes.get(card.id))
            wish = wishes.get(card.id, "")
            kept = policy.keeps_warm(now)
            cold = any(state == "cold" for state in states[card.id].values())
            wanted = cold and (kept or waiting[card.id] or wish == "load")
            models[card.id] = Model(
                card.id, kept, policy.idle_minutes * 60, card.max_requests, waiting[card.id], states[card.id], wish,
                may_load=not wanted or self._may_load(card.id))
        places = [(model, address) for model in states for address in states[model]]
        warm = [place for place in places if states[place[0]][place[1]] == "warm"]
        for place in warm:
            if "@".join(place) not in last_used:  # Redis lost it
                records.note_use(*place)
        return Seen(
            models,
            active={place: records.active(*place) for place in warm},
            idle={place: max(redis_now - last_used.get("@".join(place), redis_now), 0.0) for place in places},
            broken=frozenset(place for place, failure in failed.items() if failure.until > redis_now),
            busy=busy, drained=frozenset(drained), max_loaded=self._max_loaded, failed=failed)

    def _read_wishes(self, drained: set[str]) -> set[str]:
        """Read policies and drained Tritons anew if it is time for it, or Redis lost what it knew of these: it has
        `drained`. Returns which are."""
        if self._clock() < self._next_policies and self._drained <= drained:
            return drained
        with self._database.read() as connection:
            self._changes, self._drained = policies(connection), drains.drained(connection)
        self._next_policies = self._clock() + POLICIES_EVERY
        for address in drained ^ self._drained:
            self._records.drain(address, address in self._drained)
        return self._drained

    def _count_out(self, states: dict[str, dict[str, State]]) -> None:
        """Take what Triton never finishes to unload for Cold.

        The requests of an engine that was killed never end, and Triton lets no engine go before they do. But it loads
        another beside it.
        """
        killed, now = self._hands.killed(), self._clock()
        for model, at in states.items():
            for address, state in at.items():
                place = (model, address)
                if state != "unloading":
                    self._unloading.pop(place, None)
                elif place in killed or now - self._unloading.setdefault(place, now) >= UNLOADING:
                    at[address] = "cold"

    def _open_what_a_dead_keeper_closed(self, states: dict[str, dict[str, State]]) -> None:
        for place in map(_place, self._records.closed()):
            if place not in self._hands.busy() and states.get(place[0], {}).get(place[1]) in ("warm", "cold"):
                self._records.open(*place)

    def _mend(self, states: dict[str, dict[str, State]]) -> None:
        """Load the ensembles that are missing, as where somebody else loaded the engine."""
        whole, busy = self._hands.whole(), self._hands.busy()
        for model, at in states.items():
            for address, state in at.items():
                if state in ("cold", "away"):
                    self._hands.not_whole((model, address))
                elif state == "warm" and (model, address) not in whole | busy:
                    self._hands.load((model, address), new=False)

    def _answer(self, seen: Seen) -> None:
        """Tell those who wait for what the Spend limit forbids, or what no Triton can load; and forget wishes that are
        fulfilled, or that the policy has come to forbid."""
        told = self._records.failures() if seen.failed else {}
        for model in seen.models.values():
            failure = given_up(seen, model)
            if failure is not None and failure != told.get(model.id):
                self._records.report(model.id, failure)
            known = set(model.states.values())
            if model.waiting and not model.may_load and not known & {"warm", "loading"}:
                self._records.pause(model.id, _PAUSED_RETRY)
            if (model.wish == "load" and "warm" in known) or (
                    model.wish == "unload" and (model.kept or not known & {"warm", "loading", "unloading"})):
                self._records.granted(model.id)


def _place(name: str) -> Place:
    model, _, address = name.partition("@")
    return model, address
