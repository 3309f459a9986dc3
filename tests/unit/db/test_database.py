"""Migrations and transactions, on a real SQLite."""
from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError

from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.db.tables import accounts
from frontend.errors import Unavailable


def add_account(database: Database) -> None:
    with database.write() as connection:
        connection.execute(insert(accounts).values(
            id="acct_1", email="a@b.c", role="member", created_at=datetime(2026, 1, 2, tzinfo=UTC), disabled=False))


def test_migrating_again_changes_nothing(database: Database) -> None:
    add_account(database)
    migrate(database)
    with database.read() as connection:
        assert connection.execute(select(accounts.c.id)).scalar_one() == "acct_1"


def test_sqlite_runs_in_wal_and_checks_foreign_keys(database: Database) -> None:
    with database.read() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    add_account(database)
    def fail_late() -> None:
        with database.write() as connection:
            connection.execute(update(accounts).values(email="changed"))
            connection.execute(insert(accounts).values(
                id="acct_1", email="b@b.c", role="member", created_at=datetime.now(UTC), disabled=False))

    with pytest.raises(IntegrityError):
        fail_late()
    with database.read() as connection:
        assert connection.execute(select(accounts.c.email)).scalars().all() == ["a@b.c"]


def test_times_come_back_in_utc(database: Database) -> None:
    add_account(database)
    with database.read() as connection:
        assert connection.execute(select(accounts.c.created_at)).scalar_one() == datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(Exception, match="zone"), database.write() as connection:
        connection.execute(update(accounts).values(created_at=datetime(2026, 1, 2)))  # noqa: DTZ001


def test_writers_take_turns_and_lose_no_update(database: Database) -> None:
    add_account(database)

    def count() -> None:
        for _ in range(25):
            with database.write() as connection:
                now = connection.execute(select(accounts.c.email)).scalar_one()
                connection.execute(update(accounts).values(email=str(int(now) + 1)))

    with database.write() as connection:
        connection.execute(update(accounts).values(email="0"))
    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        assert connection.execute(select(accounts.c.email)).scalar_one() == "200"


def test_a_process_that_always_has_more_to_write_starves_no_other(database: Database) -> None:
    """It leaves the lock alone for a moment only. Who looks ten times a second sees it taken every time."""
    busy, patient = (Database(database.engine.url.render_as_string(), patience=2) for _ in range(2))
    over, turns = threading.Event(), 0

    def keep_busy() -> None:
        while not over.is_set():
            with busy.write():
                over.wait(0.195)
            time.sleep(0.005)

    other = threading.Thread(target=keep_busy)
    other.start()
    try:
        for _ in range(15):
            with patient.write():
                turns += 1
            time.sleep(0.02)  # the other has it again
    finally:
        over.set()
        other.join()
        busy.close()
        patient.close()
    assert turns == 15


def test_a_database_that_is_away_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        Database(f"sqlite:///{tmp_path / 'nowhere' / 'strata.db'}").ping()


def test_a_file_that_is_no_database_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "strata.db").write_text("hello" * 1000)
    with pytest.raises(Exception, match="not a database"):
        Database(f"sqlite:///{tmp_path / 'strata.db'}").ping()


def test_the_database_file_is_private(database: Database, tmp_path: Path) -> None:
    assert (tmp_path / "strata.db").stat().st_mode & 0o077 == 0
