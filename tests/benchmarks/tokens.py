"""What keys, limits and tokens cost a request: the check, its turn, the hold and the settlement, without Inference.

On a SQLite and a Valkey of its own, in one process and thread. Transactions are counted as the database begins them.
"""
from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import event

from frontend.accounts.api_keys import check_key, create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets.booking import Booking
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import Order
from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.limits.rate import Rate
from frontend.limits.slots import Concurrency, Slots
from frontend.limits.store import connect
from tests.valkey import Valkey

REQUESTS, FIRST = 1000, 100
STEPS = ("check the key", "count the start", "get a slot", "hold", "settle", "give the slot back")


@dataclass(frozen=True)
class Cost:
    """Milliseconds of each request's steps, and transactions of one request."""

    steps: dict[str, list[float]]
    transactions: float

    @property
    def whole(self) -> list[float]:
        """Milliseconds of each request."""
        return [sum(parts) for parts in zip(*self.steps.values(), strict=True)]


class _Work:
    begun = True
    completion_tokens = 64
    activation_bytes = 0


def measure() -> Cost:
    """Run requests one after another and time their steps."""
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder, _valkey() as valkey:
        database = Database(f"sqlite:///{Path(folder) / 'strata.db'}")
        migrate(database)
        account = create_account(database, SYSTEM, "bench@example.org")
        give_grant(database, SYSTEM, account.id, 10**9, "to be measured")
        _, secret = create_key(database, SYSTEM, account, "bench")
        redis = connect(valkey.url)
        rate, slots, leases = Rate(valkey.url, redis), Slots(redis), Leases(database, 30)
        steps: dict[str, list[float]] = {step: [] for step in STEPS}
        begun = [0]
        event.listen(database.engine, "begin", lambda _: begun.__setitem__(0, begun[0] + 1))
        for number in range(FIRST + REQUESTS):
            if number == FIRST:
                begun[0] = 0
                steps = {step: [] for step in STEPS}
            _request(database, secret, rate, slots, leases, number, _timer(steps))
        database.close()
    return Cost(steps, begun[0] / REQUESTS)


def table(cost: Cost) -> str:
    """One row for each step, and one for all of them."""
    lines = ["| step of one request | p50 ms | p99 ms | transactions |", "|---|---|---|---|"]
    for step, taken in cost.steps.items():
        lines.append(f"| {step} | {statistics.median(taken):.2f} | {_p99(taken):.2f} | |")
    lines.append(f"| all | {statistics.median(cost.whole):.2f} | {_p99(cost.whole):.2f} | {cost.transactions:.2f} |")
    return "\n".join(lines)


def _request(
    database: Database, secret: str, rate: Rate, slots: Slots, leases: Leases, number: int,
    done: Callable[[str], None],
) -> None:
    caller = check_key(database, secret)
    assert caller is not None
    done("check the key")
    rate.start(caller.key_id, 10**6)
    done("count the start")
    with slots.slot(caller.key_id, Concurrency(16, 64), 60, lambda leave: None):
        done("get a slot")
        order = Order(f"req_{number}", caller.account_id, caller.key_id, "m", "/v1/completions", None,
                      Need(32, 1, 64))
        with Booking(database, leases, order, lambda: None) as booking:
            booking.follow(_Work())
            done("hold")
            booking.settle(200)
            done("settle")
    done("give the slot back")


def _timer(steps: dict[str, list[float]]) -> Callable[[str], None]:
    last = time.perf_counter()

    def done(step: str) -> None:
        nonlocal last
        now = time.perf_counter()
        steps[step].append((now - last) * 1e3)
        last = now

    return done


@contextmanager
def _valkey() -> Iterator[Valkey]:
    server = Valkey()
    try:
        yield server
    finally:
        server.stop()


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


if __name__ == "__main__":
    print("## Keys, limits and tokens of one request\n", table(measure()), sep="\n", end="\n\n")
