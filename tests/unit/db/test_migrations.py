"""Migrations, on both databases: all or nothing, one process at a time, and nothing lost on the way."""
from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

import frontend.db.migrate
from frontend.accounts.api_keys import check_key, list_keys
from frontend.accounts.keys import new_key
from frontend.db import Database
from frontend.db.migrate import MigrationError, migrate
from frontend.db.tables import metadata
from frontend.errors import Unavailable
from tests.stack import REPOSITORY

MIGRATIONS = Path(frontend.db.migrate.__file__).parent / "migrations"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'strata.db'}"


def bring_to(url: str, revision: str) -> Database:
    """A database as an older version of the code left it."""
    database = Database(url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return database


def version(database: Database) -> str | None:
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def migrate_in(processes: int, url: str) -> None:
    """Let several processes migrate at once, and expect that all come through."""
    code = f"from frontend.db import Database; from frontend.db.migrate import migrate; migrate(Database({url!r}))"
    running = [subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
               for _ in range(processes)]
    for process in running:
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr


def test_the_migrations_make_what_the_tables_say(database: Database) -> None:
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_newer_database_is_refused(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(MigrationError):
        migrate(database)


def test_several_processes_migrate_an_empty_database_at_once(database_url: str) -> None:
    migrate_in(3, database_url)
    with Database(database_url).read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_several_processes_bring_an_old_database_up_to_date_and_lose_nothing(database_url: str) -> None:
    old = bring_to(database_url, "0001")
    key = new_key()
    with old.write() as connection:
        connection.execute(text(
            "INSERT INTO accounts (id, email, role, created_at, disabled)"
            " VALUES ('acct_1', 'ada@example.org', 'member', :now, false)"), {"now": datetime.now(UTC)})
        connection.execute(text(
            "INSERT INTO api_keys (id, account_id, name, prefix, sha256, scopes, created_at)"
            " VALUES ('key_1', 'acct_1', 'laptop', :prefix, :sha256, 'jobs usage:read', :now)"),
            {"prefix": key.prefix, "sha256": key.sha256, "now": datetime.now(UTC)})
    old.close()
    migrate_in(3, database_url)
    database = Database(database_url)
    caller = check_key(database, key.secret)
    assert caller is not None
    assert (caller.account_id, caller.scopes) == ("acct_1", {"jobs", "usage:read"})
    assert [(kept.name, kept.replaced_by) for kept in list_keys(database)] == [("laptop", None)]
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_migration_that_fails_changes_nothing(database_url: str) -> None:
    database = bring_to(database_url, "0001")
    with database.write() as connection:
        connection.execute(text("CREATE TABLE audit_events (id INTEGER)"))  # in the way of the second migration
    with pytest.raises((DBAPIError, Unavailable)):
        migrate(database)
    assert version(database) == "0001"
    with database.read() as connection:
        assert set(inspect(connection).get_table_names()) == {"accounts", "api_keys", "audit_events", "alembic_version"}
    with database.write() as connection:
        connection.execute(text("DROP TABLE audit_events"))
    migrate(database)
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
