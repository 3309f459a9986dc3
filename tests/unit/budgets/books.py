"""Looks into the books: whether everything adds up; and makes orders for tests."""
from __future__ import annotations

from sqlalchemy import func, select

from frontend.budgets.clamp import Need
from frontend.budgets.holds import Ending, Order
from frontend.db import Database
from frontend.db import balances as rows
from frontend.db.token_records import Balance
from frontend.db.token_tables import usage_records


def check_books(database: Database, account_id: str) -> Balance:
    """Assert that balance, ledger, holds and usage of an account tell the same. Returns the balance."""
    with database.read() as connection:
        balance = rows.balance_of(connection, account_id)
        sums = rows.ledger_sums(connection, account_id)
        held = rows.held_in_holds(connection, account_id)
        recorded = select(func.coalesce(func.sum(usage_records.c.charged), 0))
        used = connection.execute(recorded.where(usage_records.c.account_id == account_id)).scalar_one()
    assert balance.granted == balance.available + balance.held + balance.charged
    assert min(balance.available, balance.held, balance.charged) >= 0
    assert balance.granted == sums.get("grant", 0) + sums.get("expiry", 0)
    assert balance.charged == -sums.get("charge", 0)
    assert balance.held == held
    assert balance.charged == used
    return balance


def order(account_id: str, number: object, need: Need, model: str = "tiny-llama") -> Order:
    """An order of a key of the account's."""
    return Order(f"req_{number}", account_id, f"key_of_{account_id[-8:]}", model, "/v1/completions", None, need)


def ending(completion_tokens: int, status: int = 200, ran: bool = True, charged: bool = True) -> Ending:
    """How a request ended."""
    return Ending(status, ran, charged, completion_tokens, latency_ms=12)
