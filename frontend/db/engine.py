"""Connections to SQLite or PostgreSQL, and short transactions on them."""
from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DataError, InterfaceError, InternalError, OperationalError

from frontend.db.turns import NoTurn, Turns
from frontend.errors import InvalidRequest, Unavailable

#: Seconds that a statement waits for SQLite's write lock, and everything for PostgreSQL.
PATIENCE = 5
#: Seconds between two looks at whether SQLite's write lock is free.
_LOOK = 0.001
#: Threads of one process that read at once.
_SQLITE_READERS = 100
#: The same for PostgreSQL, and those that write. Transactions are short, so a few connections serve hundreds of
#: threads; a server has a hundred for everybody, and of many writers most would wait for the row of one busy account.
_POSTGRESQL_READERS, _POSTGRESQL_WRITERS = 12, 3


#: What SQLAlchemy and the drivers say of a database that does not answer. InternalError: PostgreSQL ended our
#: transaction, or does not write at all.
_AWAY = (sqlite3.OperationalError, psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError,
         OperationalError, InterfaceError, InternalError)


class Database:
    """One pool of connections. Threads share it; a forked process must make its own.

    Never hold a transaction while Inference works. A database that can't be reached raises Unavailable.
    """

    def __init__(self, url: str, patience: int | None = None) -> None:
        """`patience`: instead of PATIENCE, for what may take long."""
        patience = PATIENCE if patience is None else patience
        if is_sqlite(url):
            self.engine = _sqlite_engine(url, patience)
            # Who waits for SQLite's write lock sleeps and looks again. Of each process there is only one who does; the
            # others wait here, where they are woken in turn.
            self._readers, self._writers = Turns(_SQLITE_READERS, patience), Turns(1, patience)
            self._reading = self.engine
        else:
            self.engine = _postgresql_engine(url, patience)
            self._readers, self._writers = (Turns(places, patience) for places in (
                _POSTGRESQL_READERS, _POSTGRESQL_WRITERS))
            # Otherwise each statement would have a view of its own. SQLite's transactions have one.
            self._reading = self.engine.execution_options(isolation_level="REPEATABLE READ")
        self._writing = self.engine.execution_options(strata_writes=True)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads: one consistent view."""
        with _turn(self._readers), self._reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes. SQLite takes the write lock at once, so that it can't lose a race halfway."""
        with _turn(self._writers), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def write_over(self) -> Iterator[Connection]:
        """As `write`, and what is deleted is overwritten too: SQLite otherwise keeps it in pages that it calls free."""
        with self.write() as connection:
            sqlite = connection.dialect.name == "sqlite"
            if sqlite:
                connection.exec_driver_sql("PRAGMA secure_delete = ON")
            try:
                yield connection
            finally:
                if sqlite:
                    connection.exec_driver_sql("PRAGMA secure_delete = OFF")

    def forget_history(self) -> None:
        """Let SQLite's log of what was written go, as far as nobody reads it: it still has what is deleted."""
        if self.engine.dialect.name == "sqlite":
            with self.engine.connect() as connection, suppress(*_AWAY):
                connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def ping(self) -> None:
        """Raises Unavailable unless the database answers."""
        with self.read() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every idle connection."""
        self.engine.dispose()


def is_sqlite(url: str) -> bool:
    """Whether the URL names SQLite."""
    return make_url(url).get_backend_name() == "sqlite"


@contextmanager
def _turn(turns: Turns) -> Iterator[None]:
    """A turn at the database. Raises Unavailable where that is away, and InvalidRequest for what it can't hold."""
    well = True
    try:
        turns.take()
    except NoTurn as error:
        raise _unavailable() from error
    try:
        yield
    except _AWAY as error:
        well = False
        raise _unavailable() from error
    except (DataError, psycopg.DataError) as error:
        if "(0x00)" in str(error):  # PostgreSQL has no such texts, and psycopg says so: SQLite holds them
            raise InvalidRequest("A text has the character U+0000, with which nothing is kept or found.") from None
        raise
    finally:
        turns.end(well)


def _unavailable() -> Unavailable:
    return Unavailable("The database does not answer. Try again in a moment.")


def _sqlite_engine(url: str, patience: int) -> Engine:
    engine = create_engine(url, hide_parameters=True, pool_size=10, max_overflow=_SQLITE_READERS,
                           connect_args={"timeout": patience})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself: `_begin` does
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("strata_writes", False)
        # The driver's own cursor: SQLAlchemy's way to it would take longer than SQLite does.
        cursor = connection.connection.cursor()
        if writes:
            _take_write_lock(cursor, patience)
        else:
            cursor.execute("BEGIN")

    return engine


def _take_write_lock(cursor: Any, patience: float) -> None:
    """Begin a transaction that writes, and wait so many seconds for it.

    SQLite itself looks again after up to a tenth of a second (sqliteDefaultBusyCallback in its main.c). A process that
    has many writes to do leaves the lock alone for less than a thousandth between two of them, so others would starve.
    """
    deadline = time.monotonic() + patience
    cursor.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK)
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {round(patience * 1000)}")


def _postgresql_engine(url: str, patience: int) -> Engine:
    # A client that stands still in a transaction, or waits for the locks of one, is the server's to end.
    options = f"-c lock_timeout={patience}s -c idle_in_transaction_session_timeout={2 * patience}s"
    engine = create_engine(
        url, hide_parameters=True, pool_size=_POSTGRESQL_READERS + _POSTGRESQL_WRITERS, max_overflow=0,
        pool_pre_ping=True, connect_args={"connect_timeout": PATIENCE, "options": options})

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        connection = _PatientConnection.connect(*arguments, **named)
        connection.patience = patience
        return connection

    return engine


class _PatientConnection(psycopg.Connection[Any]):
    """A connection that gives a server so many seconds to answer: psycopg itself would wait for ever."""

    patience = PATIENCE

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for the server. Where it does not answer, nothing can be said to it any more, so the connection ends."""
        try:
            return super().wait(gen, interval, self.patience if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.close()
            raise
