"""A process of its own for tests about several: asks for holds as fast as it can, or holds and waits to be killed."""
from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from frontend.budgets.clamp import Need
from frontend.budgets.holds import settle, take_hold
from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.errors import BudgetExceeded
from tests.unit.budgets.books import ending, order

PROMPT, COMPLETION = 10, 90
#: Seconds. Shorter, and a busy machine would take a process for dead that only waits for a core.
LEASE = 4.0


def race(database: Database, accounts: list[str], name: str, attempts: int) -> None:
    """Try so often at once, keep each hold for a moment, use all of it. Prints how many were admitted."""
    print("ready", flush=True)
    sys.stdin.readline()
    together = threading.Barrier(attempts)

    def attempt(number: int) -> bool:
        account = accounts[number % len(accounts)]
        together.wait()
        try:
            hold = take_hold(database, order(account, f"{name}_{number}", Need(PROMPT, 1, COMPLETION, COMPLETION)))
        except BudgetExceeded:
            return False
        time.sleep(0.05)
        settle(database, hold.id, ending(COMPLETION))
        return True

    with ThreadPoolExecutor(attempts) as pool:
        print(sum(pool.map(attempt, range(attempts))), flush=True)


def stream(database: Database, account: str, name: str, produced: int) -> None:
    """Hold, produce so many tokens, have that noted, say so, and go on until killed."""
    leases = Leases(database, LEASE)
    hold = take_hold(database, order(account, name, Need(PROMPT, 1, COMPLETION)))
    leases.keep(hold.id, lambda: produced, lambda: print("lost", flush=True))
    time.sleep(1)
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    what, url, accounts, name, number = sys.argv[1:]
    if what == "race":
        race(Database(url), accounts.split(","), name, int(number))
    else:
        stream(Database(url), accounts, name, int(number))
