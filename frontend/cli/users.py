"""`strata users`: people who may use the API."""
from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import Any

import click

from frontend.accounts import service
from frontend.accounts.invitations import RESET_VALID, VALID, reset_password
from frontend.accounts.invitations import invite as invite_account
from frontend.budgets.usage import change_limits
from frontend.cli.shared import (
    Columns,
    Duration,
    actor,
    as_json_option,
    open_database,
    plain,
    print_json,
    show,
    show_one,
)
from frontend.db.records import Account
from frontend.db.token_records import LimitOverrides

_COLUMNS: Columns[Account] = {
    "id": lambda account: account.id,
    "email": lambda account: account.email,
    "role": lambda account: account.role,
    "made": lambda account: account.created_at,
    "password": lambda account: account.has_password,
    "disabled": lambda account: account.disabled,
}


_LIMITS: Columns[LimitOverrides] = {
    "requests per minute": lambda limits: limits.requests_per_minute or "default",
    "active": lambda limits: limits.active or "default",
    "waiting": lambda limits: "default" if limits.waiting is None else limits.waiting,
}


class _Limit(click.ParamType[str | int]):
    """A whole number, or `default`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """Read what was written, or fail."""
        if value == "default":
            return "default"
        if not re.fullmatch(r"\d{1,7}", value, re.ASCII):
            self.fail(f"{value!r} is neither a whole number nor default", param, ctx)
        return int(value)


@click.group()
def users() -> None:
    """People who may use the API.

    \b
    Examples:
      strata users invite ada@example.org
      strata users create ada@example.org --password-stdin < password
      strata users disable ada@example.org
    """


@users.command()
@click.argument("email")
@click.option("--role", type=click.Choice(service.ROLES), help="What a new account may do; member when left out.")
@click.option("--valid", type=Duration(), default=VALID, show_default="7d", help="How long the invitation is good for.")
@as_json_option
def invite(email: str, role: str | None, valid: timedelta, as_json: bool) -> None:
    """Invite a person and print a token.

    It is printed alone, on stdout, and can't be shown again. Whoever has the token chooses the account's password on
    the App's page /join, once. Inviting an account that has no password yet makes a new token, and the old one is good
    for nothing from then on.

    \b
    Example:
      strata users invite ada@example.org --role admin --valid 2d
    """
    with open_database() as database:
        account, invitation, token = invite_account(database, actor(), email, role, valid)
    if as_json:
        print_json({**plain(account), "invitation": plain(invitation), "token": token})
    else:
        click.echo(token)
        click.echo(f"{account.email} is invited until {invitation.expires_at:%Y-%m-%d %H:%M} UTC", err=True)


@users.command()
@click.argument("email")
@click.option("--valid", type=Duration(), default=RESET_VALID, show_default="1d", help="How long the token is good.")
@as_json_option
def reset(email: str, valid: timedelta, as_json: bool) -> None:
    """Let a person choose another password and print a token.

    It is printed alone, on stdout, and can't be shown again. The App's page /join takes it. The old password works
    until then; all browsers are signed out once it is changed.
    """
    with open_database() as database:
        account = service.find_account(database, email)
        invitation, token = reset_password(database, actor(), account, valid)
    if as_json:
        print_json({**plain(account), "invitation": plain(invitation), "token": token})
    else:
        click.echo(token)
        click.echo(f"{account.email} can choose a password until {invitation.expires_at:%Y-%m-%d %H:%M} UTC", err=True)


@users.command()
@click.argument("email")
@click.argument("new_role", metavar="ROLE", type=click.Choice(service.ROLES))
@as_json_option
def role(email: str, new_role: str, as_json: bool) -> None:
    """Make a person an admin, or a member.

    \b
    Example:
      strata users role ada@example.org admin
    """
    with open_database() as database:
        account = service.set_role(database, actor(), service.find_account(database, email), new_role)
    show_one(account, as_json, _COLUMNS)


@users.command()
@click.argument("email")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin, up to the end of its first line.")
@click.option("--role", type=click.Choice(service.ROLES), default="member", show_default=True)
@as_json_option
def create(email: str, password_stdin: bool, role: str, as_json: bool) -> None:
    """Make an account. Without a password nobody can sign in as it; its keys work all the same.

    \b
    Example:
      strata users create ada@example.org --role admin --password-stdin < password
    """
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else None
    if password == "":
        raise click.UsageError("stdin holds no password")
    with open_database() as database:
        account = service.create_account(database, actor(), email, role, password)
    show_one(account, as_json, _COLUMNS)


@users.command()
@click.argument("email")
@as_json_option
def disable(email: str, as_json: bool) -> None:
    """Shut a person out.

    From the next request on, none of the account's keys is good.
    """
    _set_disabled(email, True, as_json)


@users.command()
@click.argument("email")
@as_json_option
def enable(email: str, as_json: bool) -> None:
    """Let a disabled person in again.

    Keys that were not revoked are good again.
    """
    _set_disabled(email, False, as_json)


@users.command()
@click.argument("email")
@click.option("--requests-per-minute", type=_Limit(), help="Requests that a key may start in a minute.")
@click.option("--active", type=_Limit(), help="Requests of a key that may run at once.")
@click.option("--waiting", type=_Limit(), help="Requests of a key that may wait for their turn.")
@as_json_option
def limit(email: str, as_json: bool, **given: str | int | None) -> None:
    """Give a person's keys limits of their own.

    What is left out stays, `default` is the setting's, and with no option the limits are shown.

    \b
    Example:
      strata users limit ada@example.org --active 64 --waiting default
    """
    changes = {name: None if value == "default" else int(value) for name, value in given.items() if value is not None}
    with open_database() as database:
        account = service.find_account(database, email)
        limits = change_limits(database, actor(), account.id, **changes)
    show_one(limits, as_json, _LIMITS)


@users.command("list")
@as_json_option
def list_users(as_json: bool) -> None:
    """List every account, oldest first."""
    with open_database() as database:
        show(service.list_accounts(database), as_json, _COLUMNS)


def _set_disabled(email: str, disabled: bool, as_json: bool) -> None:
    with open_database() as database:
        account = service.set_disabled(database, actor(), service.find_account(database, email), disabled)
    show_one(account, as_json, _COLUMNS)
