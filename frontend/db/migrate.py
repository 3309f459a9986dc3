"""Brings the database to this version of the code; several processes may try at once, and one does it."""
from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from frontend.db.engine import Database

#: PostgreSQL's advisory locks are numbers; this one is Strata's for migrations.
_ADVISORY_LOCK = 7_164_921
#: Seconds that one statement of a migration may take, or wait for another process that migrates.
MIGRATION_PATIENCE = 3600


class MigrationError(Exception):
    """The database can't be used with this version of the code."""


def migrate(database: Database) -> None:
    """Run the migrations that are missing. Raises MigrationError where a newer version has been at work."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    newest = ScriptDirectory.from_config(config).get_current_head()
    file = _sqlite_file(database)
    if file:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
    with database.read() as connection:
        if _version(connection) == newest:
            return
    with _file_lock(file), _unhurried(database) as connection:
        if file is None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise MigrationError(f"The database does not fit this version of Strata: {error}") from error


@contextmanager
def _unhurried(database: Database) -> Iterator[Connection]:
    patient = Database(database.engine.url.render_as_string(hide_password=False), MIGRATION_PATIENCE)
    try:
        with patient.write() as connection:
            yield connection
    finally:
        patient.close()


def _version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _sqlite_file(database: Database) -> Path | None:
    url = database.engine.url
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


@contextmanager
def _file_lock(file: Path | None) -> Iterator[None]:
    """Wait for the lock beside a SQLite database: SQLite's own lock would give up after a few seconds."""
    if file is None:
        yield
        return
    with file.with_name(file.name + ".migrate-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
