"""Strata's command line for admins. Results go to stdout, everything else to stderr.

Exit codes: 0 done, 1 it can't be done (one line says why), 2 wrong usage.
"""
from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from frontend import logs
from frontend.accounts import service
from frontend.accounts.first_start import ensure_admin, ensure_demo_key
from frontend.db import Database
from frontend.db.migrate import MigrationError, migrate
from frontend.db.records import Account, ApiKey
from frontend.errors import ApiError
from frontend.settings import Settings, SettingsError

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Failing(click.Group):
    """A group whose commands end with one line and exit code 1 when something can't be done."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (SettingsError, MigrationError, service.AccountError, ApiError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Failing, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Strata: people, API keys and the parts that run beside the API.

    The environment's STRATA_* settings say which database is meant: STRATA_DATABASE_URL, or the one in STRATA_HOME.
    """


@main.command()
@click.option("--demo-key-file", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="Where the demo key is kept, readable by its owner only.")
def setup(demo_key_file: Path) -> None:
    """Bring the database up to date and make what a new installation needs.

    That is an admin's account, and an API key to try things with. Running it again changes nothing; when the key's file
    is lost, the old demo key is revoked and a new one is made.
    """
    with _database() as database:
        made = ensure_demo_key(database, ensure_admin(database), demo_key_file)
    click.echo(f"{'A new demo key is' if made else 'The demo key is'} in {demo_key_file}", err=True)


@main.command()
def keeper() -> None:
    """Run the keeper, which keeps models Warm, until it is told to stop."""
    from frontend.keeper import run  # it speaks to Triton, which no other command needs

    settings = Settings.from_environment()
    logs.configure(settings.log_level)
    run(settings)


@main.group()
def users() -> None:
    """People who may use the API."""


@users.command("create")
@click.argument("email")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin, up to the end of its first line.")
@click.option("--role", type=click.Choice(service.ROLES), default="member", show_default=True)
@_as_json
def create_user(email: str, password_stdin: bool, role: str, as_json: bool) -> None:
    """Make an account. Without a password nobody can sign in as it; its keys work all the same."""
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else None
    if password == "":
        raise click.UsageError("stdin holds no password")
    with _database() as database:
        account = service.create_account(database, email, role, password)
    _show([account], as_json, one=True)


@users.command("list")
@_as_json
def list_users(as_json: bool) -> None:
    """List every account."""
    with _database() as database:
        _show(service.list_accounts(database), as_json)


@main.group()
def keys() -> None:
    """API keys."""


@keys.command("create")
@click.argument("email")
@click.option("--name", required=True, help="What the key is for; shown in lists.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(sorted(service.SCOPES)),
              help="What the key may be used for; may be repeated. All when left out.")
@_as_json
def create_key(email: str, name: str, scopes: tuple[str, ...], as_json: bool) -> None:
    """Make an API key for an account and print it, alone, on stdout. It can't be shown again."""
    with _database() as database:
        account = service.find_account(database, email)
        key, secret = service.create_key(database, account, name, frozenset(scopes) or service.SCOPES)
    if as_json:
        click.echo(json.dumps({**_plain(key), "key": secret}))
    else:
        click.echo(secret)


@keys.command("list")
@click.argument("email", required=False)
@_as_json
def list_keys(email: str | None, as_json: bool) -> None:
    """List the keys of an account, or all keys, revoked ones too."""
    with _database() as database:
        account = service.find_account(database, email) if email else None
        _show(service.list_keys(database, account), as_json)


@keys.command("revoke")
@click.argument("key_id")
def revoke_key(key_id: str) -> None:
    """Revoke a key for good, by its id: the next request with it is refused."""
    with _database() as database:
        service.revoke_key(database, key_id)
    click.echo(f"{key_id} is revoked", err=True)


@contextmanager
def _database() -> Iterator[Database]:
    """The database that the settings name, up to date."""
    settings = Settings.from_environment()
    logs.configure("warning")
    database = Database(settings.database_url)
    try:
        migrate(database)
        yield database
    finally:
        database.close()


def _show(records: Sequence[Account | ApiKey], as_json: bool, one: bool = False) -> None:
    plain = [_plain(record) for record in records]
    if as_json:
        click.echo(json.dumps(plain[0] if one else plain))
    elif plain:
        rows = [[str(name) for name in plain[0]], *[[_cell(value) for value in row.values()] for row in plain]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _plain(record: Account | ApiKey) -> dict[str, Any]:
    """A record as JSON has it."""
    return {name: _json_value(value) for name, value in dataclasses.asdict(record).items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return sorted(value) if isinstance(value, frozenset) else value


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return "-" if value is None else str(value)
