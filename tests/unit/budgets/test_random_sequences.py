"""Whatever happens in whatever order, the books add up after each step."""
from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from frontend.accounts.audit import SYSTEM
from frontend.accounts.keys import random_text
from frontend.accounts.service import create_account
from frontend.budgets.clamp import Need
from frontend.budgets.expiry import look_at_grants
from frontend.budgets.grants import give_grant, list_grants
from frontend.budgets.holds import Hold, settle, settle_abandoned, take_hold
from frontend.db import Database
from frontend.db import balances as rows
from frontend.errors import BudgetExceeded
from tests.unit.budgets.books import check_books, ending, order


class Books(RuleBasedStateMachine):
    """One account of one database. A crash is a hold of which only the keeper knows any more."""

    database: Database
    running = Bundle("running")
    crashed = Bundle("crashed")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.account = create_account(self.database, SYSTEM, f"{random_text(12)}@example.org")
        self.held: dict[str, int] = {}
        self.produced: dict[str, int] = {}
        self.beats: dict[str, int] = {}
        self.charged = 0
        self.hours = 0

    @rule(amount=st.integers(1, 500), days=st.one_of(st.none(), st.integers(1, 3)))
    def grant(self, amount: int, days: int | None) -> None:
        expires_at = datetime.now(UTC) + timedelta(hours=self.hours, days=days) if days else None
        give_grant(self.database, SYSTEM, self.account.id, amount, "", expires_at)

    @rule(target=running, prompt=st.integers(1, 100), choices=st.integers(1, 4), max_tokens=st.integers(1, 100))
    def hold(self, prompt: int, choices: int, max_tokens: int) -> Hold | None:
        available = check_books(self.database, self.account.id).available
        need = Need(prompt, choices, max_tokens)
        try:
            hold = take_hold(self.database, order(self.account.id, random_text(12), need))
        except BudgetExceeded:
            assert prompt + choices > available
            return None
        assert hold.max_tokens == need.fit(available)
        self.held[hold.id] = need.total(hold.max_tokens)
        self.beats[hold.id] = 0
        return hold

    @rule(hold=running, produced=st.integers(0, 400))
    def checkpoint(self, hold: Hold | None, produced: int) -> None:
        if hold is None or hold.id not in self.held:
            return
        produced = min(produced, self.held[hold.id] - hold.prompt_tokens)
        with self.database.write() as connection:
            rows.renew_holds(connection, [(hold.id, produced)])
        self.produced[hold.id] = produced
        self.beats[hold.id] += 1

    @rule(target=ended, hold=consumes(running), used=st.integers(0, 400), charged=st.booleans(), ran=st.booleans())
    def end(self, hold: Hold | None, used: int, charged: bool, ran: bool) -> Hold | None:
        if hold is None:
            return None
        used = min(used, self.held[hold.id] - hold.prompt_tokens)
        assert settle(self.database, hold.id, ending(used, charged=charged, ran=ran)) is not None
        self._gone(hold, hold.prompt_tokens + used if charged and ran else 0)
        return hold

    @rule(target=crashed, hold=consumes(running))
    def crash(self, hold: Hold | None) -> Hold | None:
        return hold

    @rule(target=ended, hold=consumes(crashed))
    def sweep(self, hold: Hold | None) -> Hold | None:
        if hold is None:
            return None
        assert settle_abandoned(self.database, hold.id, self.beats[hold.id] + 1) is None
        assert settle_abandoned(self.database, hold.id, self.beats[hold.id]) is not None
        produced = self.produced.get(hold.id)
        self._gone(hold, 0 if produced is None else hold.prompt_tokens + produced)
        return hold

    @rule(hold=ended)
    def end_again(self, hold: Hold | None) -> None:
        if hold is not None:
            assert settle(self.database, hold.id, ending(1)) is None
            assert settle_abandoned(self.database, hold.id, self.beats[hold.id]) is None

    @rule(hours=st.integers(1, 48))
    def time_passes(self, hours: int) -> None:
        self.hours += hours
        with self.database.write() as connection:
            rows_of = rows.lock_balance(connection, self.account.id)
            if rows_of is not None:
                look_at_grants(connection, self.account.id, datetime.now(UTC) + timedelta(hours=self.hours))

    def _gone(self, hold: Hold, charge: int) -> None:
        del self.held[hold.id]
        self.charged += charge

    @invariant()
    def the_books_add_up(self) -> None:
        balance = check_books(self.database, self.account.id)
        assert balance.held == sum(self.held.values())
        assert balance.charged == self.charged
        grants = list_grants(self.database, self.account.id)
        assert balance.granted == sum(grant.amount - grant.expired for grant in grants)
        assert sum(grant.spent for grant in grants) <= balance.charged


@pytest.fixture
def machine(database: Database) -> Callable[[], Books]:
    class OnThisDatabase(Books):
        pass

    OnThisDatabase.database = database
    return OnThisDatabase


def test_random_sequences_of_everything_that_can_happen(machine: Callable[[], Books]) -> None:
    run_state_machine_as_test(machine, settings=settings(  # type: ignore[no-untyped-call]
        max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)))
