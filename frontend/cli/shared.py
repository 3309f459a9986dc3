"""What the commands share: the database, who acts, how records are printed, and how times are written."""
from __future__ import annotations

import dataclasses
import json
import os
import pwd
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from frontend import logs
from frontend.accounts.audit import Actor
from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.settings import Settings

_Record = TypeVar("_Record")
#: A table's columns: the title of each, and what it shows of a record.
Columns = Mapping[str, Callable[[_Record], object]]

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@contextmanager
def open_database() -> Iterator[Database]:
    """The database that the settings name, up to date."""
    settings = Settings.from_environment()
    logs.configure("warning")
    database = Database(settings.database_url)
    try:
        migrate(database)
        yield database
    finally:
        database.close()


def actor() -> Actor:
    """Who runs this command, for the audit log: the machine's user, who became root by sudo or came by ssh or did not.
    """
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user need not have a name
        name = str(os.getuid())
    if os.getuid() == 0:
        name = os.environ.get("SUDO_USER") or name
    remote = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    return Actor(f"cli:{name}", f"{socket.gethostname()} via ssh from {remote}" if remote else socket.gethostname())


def show(records: Sequence[_Record], as_json: bool, columns: Columns[_Record]) -> None:
    """Print records as a table, or all that they hold as a JSON list."""
    if as_json:
        print_json([plain(record) for record in records])
    elif records:
        table = [list(columns), *[[_cell(value(record)) for value in columns.values()] for record in records]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        click.echo("none", err=True)


def show_one(record: _Record, as_json: bool, columns: Columns[_Record], **more: object) -> None:
    """Print one record, with what `more` says of it in JSON."""
    if as_json:
        print_json({**plain(record), **more})
    else:
        show([record], False, columns)


def print_json(value: Any, end: str = "\n") -> None:
    """Print JSON on one line."""
    click.echo(json.dumps(value, ensure_ascii=False) + end, nl=False)


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON has it."""
    return {name: _json_value(value) for name, value in dataclasses.asdict(record).items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {name: _json_value(item) for name, item in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name}={_cell(item)}" for name, item in value.items()) or "-"
    if isinstance(value, (frozenset, list)):
        return ",".join(sorted(map(str, value)))
    return "-" if value is None else str(value)


class Moment(click.ParamType[datetime]):
    """A point in time: a date, which means its first moment in UTC, or a date and a time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read what was written, or fail."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: write 2027-01-31 or 2027-01-31T12:00", param, ctx)


class Duration(click.ParamType[timedelta]):
    """A length of time: a whole number and its unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read what was written, or fail."""
        if isinstance(value, timedelta):
            return value
        written = re.fullmatch(r"(\d{1,6})([smhdw])", value, re.ASCII)
        if not written:
            self.fail(f"{value!r} is no duration: write 30m, 24h or 7d", param, ctx)
        return timedelta(**{_UNITS[written[2]]: int(written[1])})
