"""Holds: tokens set aside before a request runs, and settled once when it has ended.

Exact at any concurrency, because a conditional UPDATE takes them and the deletion of a row gives them back. No
transaction is open while Inference works.
"""
from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from frontend.budgets.clamp import Need
from frontend.budgets.expiry import look_at_grants
from frontend.db import Database
from frontend.db import balances as rows
from frontend.db.token_records import Balance, ClosedHold, OpenHold, UsageRecord
from frontend.errors import BudgetExceeded
from frontend.spend.limits import check_spend


@dataclass(frozen=True)
class Order:
    """What a request wants to run. `id` becomes the hold's, the usage record's and the charge's."""

    id: str
    account_id: str
    key_id: str
    model: str
    route: str
    user_tag: str | None
    need: Need


@dataclass(frozen=True)
class Hold:
    """Tokens that are set aside. `max_tokens` may be lower than the order's; `available` is what was left then."""

    id: str
    max_tokens: int
    prompt_tokens: int
    available: int


@dataclass(frozen=True)
class Ending:
    """How a request ended. Its prompt ran and its tokens count only if `ran`; they cost nothing unless `charged`."""

    status: int
    ran: bool
    charged: bool
    completion_tokens: int
    latency_ms: int | None
    activation_bytes: int = 0


@dataclass(frozen=True)
class Settled:
    """What settling did: the record that was written, and what the account has available now."""

    record: UsageRecord
    available: int


def take_hold(database: Database, order: Order) -> Hold:
    """Hold the tokens that a request could use, with max_tokens lowered to what there is.

    Raises BudgetExceeded where not even the least fits, SpendCap where the Spend limit is reached.
    """
    now = datetime.now(UTC)
    with database.write() as connection:
        hold, limited = _reserve(connection, order, now)
        if limited:
            check_spend(connection, order.model, now)
        rows.add_hold(connection, OpenHold(
            order.id, order.account_id, order.key_id, order.model, order.route, order.user_tag,
            order.need.total(hold.max_tokens), order.need.prompt_tokens, produced=None, beat=0, created_at=now))
    return hold


def settle(database: Database, hold_id: str, ending: Ending) -> Settled | None:
    """Charge what a request used and release the rest. None, and nothing done, where that was done before."""
    with database.write() as connection:
        return settle_in(connection, hold_id, ending)


def settle_abandoned(database: Database, hold_id: str, beat: int) -> Settled | None:
    """Settle a hold whose process died, at its prompt and what its last checkpoint says was produced.

    A request of which no checkpoint says that the engine began costs nothing. None where the hold was settled, or its
    lease renewed since `beat`.
    """
    with database.write() as connection:
        hold = rows.close_hold(connection, hold_id, beat)
        if hold is None:
            return None
        ran = hold.produced is not None
        return _settle(connection, hold, Ending(500, ran, ran, hold.produced or 0, latency_ms=None), "keeper")


def settle_in(connection: Connection, hold_id: str, ending: Ending) -> Settled | None:
    """`settle` inside a transaction of the caller's."""
    hold = rows.close_hold(connection, hold_id)
    return _settle(connection, hold, ending, "request") if hold else None


def drop(connection: Connection, hold_id: str) -> bool:
    """Give back what is held for work that will be begun anew: nothing is charged or noted. False where it was settled.
    """
    hold = rows.close_hold(connection, hold_id)
    if hold is None:
        return False
    rows.release(connection, hold.account_id, hold.amount, 0)
    return True


def balance(database: Database, account_id: str) -> Balance:
    """An account's tokens."""
    with database.read() as connection:
        return rows.balance_of(connection, account_id)


def _reserve(connection: Connection, order: Order, now: datetime) -> tuple[Hold, bool]:
    """The hold, and whether the model is under a Spend limit."""
    need, account_id = order.need, order.account_id
    done = rows.reserve(connection, account_id, need.total(need.max_tokens), order.model, now)
    if done is not None:
        left, limited = done
        return Hold(order.id, need.max_tokens, need.prompt_tokens, left), limited
    locked = rows.lock_balance(connection, account_id)
    if locked is not None and locked[1] is not None and locked[1] <= now:
        look_at_grants(connection, account_id, now)
        locked = rows.lock_balance(connection, account_id)
    available = locked[0].available if locked else 0
    fits = need.fit(available)
    if fits is None:
        raise _exceeded(need, available)
    done = rows.reserve(connection, account_id, need.total(fits), order.model, now)
    if done is None:
        raise AssertionError("a locked balance changed")
    left, limited = done
    return Hold(order.id, fits, need.prompt_tokens, left), limited


def _exceeded(need: Need, available: int) -> BudgetExceeded:
    least = f"at least {need.least} tokens" if need.least > 1 else "one token"
    choices = f"each of {need.choices} choices" if need.choices > 1 else "the completion"
    return BudgetExceeded(
        f"This request needs {need.total(need.least)} tokens, {need.prompt_tokens} for its prompt and {least} for "
        f"{choices}, and {available} of yours are available. Ask for more, or send less.",
        headers={"x-should-retry": "false", "x-ratelimit-remaining-tokens": str(available)})


def _settle(connection: Connection, hold: ClosedHold, ending: Ending, by: str) -> Settled:
    now = datetime.now(UTC)
    prompt = hold.prompt_tokens if ending.ran else 0
    completion = ending.completion_tokens if ending.ran else 0
    # More than was held can't be charged: the account may not have it. The engine keeps to max_tokens.
    charge = min(prompt + completion, hold.amount) if ending.charged else 0
    record = UsageRecord(
        hold.id, hold.account_id, hold.key_id, now, hold.model, hold.route, hold.user_tag, prompt, completion, charge,
        ending.activation_bytes, ending.status, ending.latency_ms, by)
    rows.add_usage(connection, record)
    if charge:
        rows.add_entry(connection, hold.account_id, now, "charge", -charge, hold.id)
    available = rows.release(connection, hold.account_id, hold.amount, charge)
    return Settled(record, available)
