"""What was used, by day for its person and by request for admins: whole, without texts, and equal to the ledger."""
from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.budgets import usage as usage_module
from frontend.budgets.clamp import Need
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import Order, settle, take_hold
from frontend.budgets.usage import COLUMNS, export_usage, usage, write_csv
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.token_records import DayUsage
from frontend.db.token_tables import usage_records
from tests.unit.budgets.books import check_books, ending


def use(database: Database, account: Account, name: object, model: str = "llama-8b", user: str | None = None) -> None:
    """10 prompt tokens and 5 completion tokens."""
    order = Order(f"req_{name}", account.id, "key_1", model, "/v1/completions", user, Need(10, 1, 9))
    settle(database, take_hold(database, order).id, ending(5))


@pytest.fixture
def used(database: Database, ada: Account) -> Account:
    """Seven requests of two models on two days."""
    give_grant(database, SYSTEM, ada.id, 10_000, "")
    for number in range(7):
        use(database, ada, number, "llama-70b" if number == 6 else "llama-8b", "=1+1" if number == 0 else None)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    with database.write() as connection:
        connection.execute(update(usage_records).where(usage_records.c.id < "req_3").values(
            at=yesterday, day=yesterday.strftime("%Y-%m-%d")))
    return ada


def test_days_and_models(database: Database, used: Account) -> None:
    today, yesterday = (f"{datetime.now(UTC) - timedelta(days=ago):%Y-%m-%d}" for ago in (0, 1))
    assert usage(database, used.id, 30).days == [
        DayUsage(yesterday, "llama-8b", 3, 30, 15, 45), DayUsage(today, "llama-70b", 1, 10, 5, 15),
        DayUsage(today, "llama-8b", 3, 30, 15, 45)]
    assert [day.day for day in usage(database, used.id, 1).days] == [today, today]
    assert usage(database, used.id, 30).balance == check_books(database, used.id)


def test_an_export_in_pages_is_whole_and_equals_the_ledger(
    database: Database, used: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = create_account(database, SYSTEM, "eve@example.org")
    give_grant(database, SYSTEM, other.id, 10_000, "")
    use(database, other, "other")
    for size in (1, 3, 7, 1000):
        monkeypatch.setattr(usage_module, "_PAGE", size)
        assert [record.id for record in export_usage(database, used.id)] == [f"req_{n}" for n in range(7)]
        assert sum(record.charged for record in export_usage(database)) == sum(
            check_books(database, account.id).charged for account in (used, other))


def test_a_part_of_an_export(database: Database, used: Account) -> None:
    noon = datetime.now(UTC) - timedelta(hours=12)
    assert [record.id for record in export_usage(database, since=noon)] == ["req_3", "req_4", "req_5", "req_6"]
    assert [record.id for record in export_usage(database, until=noon)] == ["req_0", "req_1", "req_2"]
    assert list(export_usage(database, since=noon, until=noon)) == []


def test_nothing_used_is_an_empty_export(database: Database, ada: Account) -> None:
    out = io.StringIO()
    write_csv(export_usage(database), out)
    assert out.getvalue() == ",".join(COLUMNS) + "\n"


def test_an_export_ends_although_requests_go_on(
    database: Database, used: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "_PAGE", 2)
    found = []
    for record in export_usage(database):
        found.append(record.id)
        use(database, used, f"later_{record.id}")
    assert found == [f"req_{number}" for number in range(7)]


def test_a_clock_that_was_set_back_hides_no_record(database: Database, used: Account) -> None:
    with database.write() as connection:
        connection.execute(update(usage_records).where(usage_records.c.id == "req_6").values(
            at=datetime.now(UTC) + timedelta(hours=1)))
    assert sum(record.charged for record in export_usage(database)) == check_books(database, used.id).charged


def test_a_spreadsheet_runs_nothing_that_callers_sent(database: Database, used: Account) -> None:
    out = io.StringIO()
    write_csv(export_usage(database), out)
    assert [row["user"] for row in csv.DictReader(io.StringIO(out.getvalue()))][:2] == ["'=1+1", ""]
