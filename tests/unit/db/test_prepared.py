"""A prepared statement does what SQLAlchemy would have done with it, on both databases."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import bindparam, delete, insert, select, update

from frontend.db import Database
from frontend.db.prepared import Prepared
from frontend.db.tables import accounts

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ADD = Prepared(insert(accounts), [column.name for column in accounts.c])


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'strata.db'}"


def add(database: Database, number: int, created_at: datetime = NOON) -> None:
    with database.write() as connection:
        assert ADD(connection, id=f"acct_{number}", email=f"a{number}@b.c", role="member", password_hash=None,
                   created_at=created_at, disabled=False) == []


def test_values_are_stored_as_their_types_say(database: Database) -> None:
    add(database, 1, NOON.astimezone(timezone(timedelta(hours=5))))
    with database.read() as connection:
        row = connection.execute(select(accounts)).one()
    assert (row.id, row.password_hash, row.created_at, row.disabled) == ("acct_1", None, NOON, False)


def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    with pytest.raises(ValueError, match="zone"):
        add(database, 1, datetime(2026, 5, 1))  # noqa: DTZ001


def test_constants_and_parameters_and_rows(database: Database) -> None:
    for number in range(3):
        add(database, number)
    rename = Prepared(
        update(accounts).where(accounts.c.id == bindparam("which"), accounts.c.disabled == False)  # noqa: E712
        .values(role="admin").returning(accounts.c.id, accounts.c.role))
    with database.write() as connection:
        assert rename(connection, which="acct_1") == [("acct_1", "admin")]
        assert rename(connection, which="acct_9") == []
    remove = Prepared(delete(accounts).where(accounts.c.role == bindparam("of")).returning(accounts.c.id))
    with database.write() as connection:
        assert sorted(remove(connection, of="member")) == [("acct_0",), ("acct_2",)]


def test_it_belongs_to_the_transaction(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            ADD(connection, id="acct_1", email="a@b.c", role="member", password_hash=None, created_at=NOON,
                disabled=False)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with database.read() as connection:
        assert connection.execute(select(accounts)).all() == []
