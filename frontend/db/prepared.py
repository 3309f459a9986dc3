"""Statements that every request runs: written for SQLAlchemy, compiled once for each database, run by its driver.

SQLAlchemy's own way from a statement to the driver takes several times as long as SQLite takes for the statement.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, Delete, Insert, Update
from sqlalchemy.engine import Dialect


@dataclass(frozen=True)
class _Compiled:
    """`order` is the names of the parameters where the driver wants them by place."""

    text: str
    constants: dict[str, Any]
    converters: dict[str, Callable[[Any], Any]]
    order: Sequence[str] | None


class Prepared:
    """A statement whose parameters are named. Rows come back as the driver has them: ask for text and numbers only."""

    def __init__(self, statement: Insert | Update | Delete, columns: Sequence[str] | None = None) -> None:
        """`columns`: those that an INSERT fills, by parameters of the same names."""
        self._statement = statement
        self._columns = columns
        self._compiled: dict[str, _Compiled] = {}

    def __call__(self, connection: Connection, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run it in the connection's transaction; the rows that it returns. Raises the driver's errors."""
        compiled = self._compiled.get(connection.dialect.name) or self._compile(connection.dialect)
        values = {**compiled.constants, **parameters}
        for name, convert in compiled.converters.items():
            values[name] = convert(values[name])
        cursor = connection.connection.cursor()
        cursor.execute(compiled.text, values if compiled.order is None else [values[name] for name in compiled.order])
        # To the end: SQLite commits nothing while a statement has rows left.
        rows = cursor.fetchall() if cursor.description else []
        cursor.close()
        return cast("list[tuple[Any, ...]]", rows)

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled = self._statement.compile(dialect=dialect, column_keys=self._columns)
        converters = {name: bind.type.dialect_impl(dialect).bind_processor(dialect)
                      for name, bind in compiled.binds.items()}
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._compiled[dialect.name] = _Compiled(
            str(compiled), constants, {name: convert for name, convert in converters.items() if convert},
            compiled.positiontup if compiled.positional else None)
        return self._compiled[dialect.name]
