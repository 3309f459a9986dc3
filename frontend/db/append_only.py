"""Makes a table append-only in the database itself, so that not even a slip of our own code can change its past.

Whoever owns the database can drop the triggers again; that is an act, not an accident.
"""
from __future__ import annotations

from sqlalchemy import Connection, text

_SQLITE = (
    "CREATE TRIGGER {table}_keep_update BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, '{message}'); END",
    "CREATE TRIGGER {table}_keep_delete BEFORE DELETE ON {table} BEGIN SELECT RAISE(ABORT, '{message}'); END",
    # INSERT OR REPLACE removes the old row without asking the trigger on DELETE.
    "CREATE TRIGGER {table}_keep_replace BEFORE INSERT ON {table} WHEN EXISTS"
    " (SELECT 1 FROM {table} WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, '{message}'); END",
)
_POSTGRESQL = (
    "CREATE FUNCTION {table}_keep() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation'; END $$",
    "CREATE TRIGGER {table}_keep_rows BEFORE UPDATE OR DELETE ON {table}"
    " FOR EACH ROW EXECUTE FUNCTION {table}_keep()",
    "CREATE TRIGGER {table}_keep_all BEFORE TRUNCATE ON {table}"
    " FOR EACH STATEMENT EXECUTE FUNCTION {table}_keep()",
    # Also for a session that switches triggers off by its replication role.
    "ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_keep_rows",
    "ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_keep_all",
)


def keep_forever(connection: Connection, table: str) -> None:
    """Refuse to change or remove rows of a table whose key is `id`, with sqlalchemy's IntegrityError. For migrations:
    SQLite forgets the triggers of a table that it rebuilds."""
    statements = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL
    for statement in statements:
        connection.execute(text(statement.format(table=table, message=f"{table} is append-only")))
