"""A PostgreSQL that stops answering is noticed in seconds, and used again when it answers."""
from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest
from sqlalchemy import Connection, text

from frontend.db import Database
from frontend.errors import InvalidRequest, Unavailable
from tests.postgres import Postgres


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A PostgreSQL of its own, since it is made to stand still."""
    server = Postgres.start()
    yield server
    server.stop()


@pytest.fixture
def impatient(server: Postgres) -> Iterator[Database]:
    database = Database(server.new_database(), patience=1)
    yield database
    database.close()


def family(server: Postgres) -> list[psutil.Process]:
    process = psutil.Process(server.process.pid)
    return [process, *process.children(recursive=True)]


def test_a_server_that_stands_still_is_unavailable_and_then_back(server: Postgres, impatient: Database) -> None:
    impatient.ping()
    stopped = family(server)
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(Unavailable):
        impatient.ping()
    waited = time.monotonic() - started
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    impatient.ping()
    assert waited < 30  # for ever, without a patience of ours


def test_a_text_that_it_can_not_hold_is_a_mistake_of_who_sent_it(server: Postgres, impatient: Database) -> None:
    def ask(value: str) -> object:
        with impatient.read() as connection:
            return connection.execute(text("SELECT CAST(:value AS text)"), {"value": value}).scalar_one()

    with pytest.raises(InvalidRequest):
        ask("a\0b")
    assert ask("ab") == "ab"


def test_it_may_also_stop_in_the_middle_of_a_transaction(server: Postgres, impatient: Database) -> None:
    def work() -> None:
        with impatient.write() as connection:
            connection.execute(text("CREATE TABLE t (n integer)"))
            connection.execute(text("SELECT pg_sleep(60)"))

    with pytest.raises(Unavailable):
        work()
    with impatient.read() as connection:
        assert connection.execute(text("SELECT to_regclass('t')")).scalar_one() is None


def test_a_lock_that_somebody_else_keeps_is_not_waited_for_for_ever(server: Postgres, impatient: Database) -> None:
    with impatient.write() as connection:
        connection.execute(text("CREATE TABLE t (n integer)"))

    def work() -> None:
        with impatient.write() as connection:
            connection.execute(text("INSERT INTO t VALUES (1)"))

    with impatient.write() as connection:
        connection.execute(text("LOCK TABLE t"))
        with pytest.raises(Unavailable):
            work()
    work()


def test_a_client_that_stands_still_in_a_transaction_loses_it(server: Postgres, impatient: Database) -> None:
    with impatient.write() as connection:
        connection.execute(text("CREATE TABLE t (n integer)"))

    def stand_still() -> None:
        with impatient.write() as connection:
            connection.execute(text("LOCK TABLE t"))
            time.sleep(2.5)
            connection.execute(text("SELECT 1"))

    with pytest.raises(Unavailable):
        stand_still()
    with impatient.write() as connection:
        connection.execute(text("INSERT INTO t VALUES (1)"))


def test_what_is_read_in_one_transaction_is_of_one_moment(server: Postgres, impatient: Database) -> None:
    def count(connection: Connection) -> object:
        return connection.execute(text("SELECT count(*) FROM t")).scalar_one()

    with impatient.write() as connection:
        connection.execute(text("CREATE TABLE t (n integer)"))
    with impatient.read() as reading:
        assert count(reading) == 0
        with impatient.write() as connection:
            connection.execute(text("INSERT INTO t VALUES (1)"))
        assert count(reading) == 0
    with impatient.write() as connection:  # a writer sees what others have written meanwhile
        assert count(connection) == 1
        assert connection.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
