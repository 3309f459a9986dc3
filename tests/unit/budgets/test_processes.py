"""Several processes at one account: exactly as many are admitted as fit, and what a killed one held is settled."""
from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from frontend.accounts.audit import SYSTEM
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import balance
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.token_records import Balance
from frontend.keeper.sweep import Sweep
from tests.stack import REPOSITORY
from tests.unit.budgets.books import check_books
from tests.unit.budgets.worker import COMPLETION, LEASE, PROMPT

EACH = PROMPT + COMPLETION


def start(url: str, what: str, accounts: Sequence[str], name: object, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.budgets.worker", what, url, ",".join(accounts), str(name), str(number)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def race(database: Database, url: str, accounts: Sequence[str]) -> int:
    """200 requests at once from four processes. Returns how many were admitted."""
    processes = [start(url, "race", accounts, number, 50) for number in range(4)]
    assert [line(process) for process in processes] == ["ready"] * 4
    for process in processes:
        go_on(process)
    while any(process.poll() is None for process in processes):
        for account in accounts:
            now = balance(database, account)
            assert now.charged + now.held <= now.granted
    return sum(int(line(process)) for process in processes)


@pytest.mark.parametrize("granted", [50 * EACH, 50 * EACH + EACH - 1])
def test_200_at_once_on_an_allowance_for_50(
    database: Database, database_url: str, ada: Account, granted: int
) -> None:
    give_grant(database, SYSTEM, ada.id, granted, "for 50")
    assert race(database, database_url, [ada.id]) == 50
    assert check_books(database, ada.id) == Balance(granted, granted - 50 * EACH, 0, 50 * EACH)


def test_what_a_killed_process_held_is_settled_at_its_last_checkpoint(
    database: Database, database_url: str, ada: Account
) -> None:
    give_grant(database, SYSTEM, ada.id, 10_000, "for tests")
    processes = [start(database_url, "stream", [ada.id], number, 20 + number) for number in range(3)]
    sweep = Sweep(database, LEASE, every=0.1)
    for process in processes:
        assert line(process) == "ready"
    deadline = time.monotonic() + LEASE + 1  # while the processes live, nothing is settled
    while time.monotonic() < deadline:
        assert sweep.round() == 0
        time.sleep(0.1)
    assert check_books(database, ada.id).held == 3 * EACH
    for process in processes[:2]:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 30
    while check_books(database, ada.id).held > EACH:
        assert time.monotonic() < deadline, "the holds are stuck"
        sweep.round()
        time.sleep(0.1)
    assert check_books(database, ada.id) == Balance(
        10_000, 10_000 - EACH - 61, EACH, PROMPT + 20 + PROMPT + 21)
    processes[2].kill()
    processes[2].wait()
