"""`strata keys`: API keys, whose secrets are shown once."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from frontend.accounts import api_keys
from frontend.accounts.service import find_account, list_accounts
from frontend.cli.shared import (
    Columns,
    Duration,
    Moment,
    actor,
    as_json_option,
    open_database,
    plain,
    print_json,
    show,
)
from frontend.db.records import ApiKey


@click.group()
def keys() -> None:
    """API keys.

    \b
    Examples:
      strata keys create ada@example.org --name laptop
      strata keys rotate key_… --overlap 24h
      strata keys revoke key_…
    """


@keys.command()
@click.argument("email")
@click.option("--name", required=True, help="What the key is for; shown in lists.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(sorted(api_keys.SCOPES)),
              help="What the key may be used for; may be repeated. All when left out.")
@click.option("--expires", "expires_at", type=Moment(), help="When it stops working; never when left out.")
@as_json_option
def create(email: str, name: str, scopes: tuple[str, ...], expires_at: datetime | None, as_json: bool) -> None:
    """Make an API key for an account and print it.

    It is printed alone, on stdout, and can't be shown again.

    \b
    Examples:
      strata keys create ada@example.org --name laptop
      strata keys create ada@example.org --name dashboard --scope usage:read --expires 2027-01-31
    """
    with open_database() as database:
        account = find_account(database, email)
        key, secret = api_keys.create_key(database, actor(), account, name, frozenset(scopes) or api_keys.SCOPES,
                                          expires_at)
    if as_json:
        print_json({**plain(key), "key": secret})
    else:
        click.echo(secret)


@keys.command("list")
@click.argument("email", required=False)
@as_json_option
def list_keys(email: str | None, as_json: bool) -> None:
    """List an account's keys, or all.

    Expired and revoked ones too, oldest first.
    """
    with open_database() as database:
        account = find_account(database, email) if email else None
        found = api_keys.list_keys(database, account)
        emails = {other.id: other.email for other in list_accounts(database)}
    show(found, as_json, _columns(emails))


@keys.command()
@click.argument("key_id")
@as_json_option
def revoke(key_id: str, as_json: bool) -> None:
    """Revoke a key for good, by its id.

    The next request with it is refused.
    """
    with open_database() as database:
        key = api_keys.revoke_key(database, actor(), key_id)
    if as_json:
        print_json(plain(key))
    else:
        click.echo(f"{key.id} is revoked", err=True)


@keys.command()
@click.argument("key_id")
@click.option("--overlap", type=Duration(), default=timedelta(days=1), show_default="24h",
              help="How long the old key still works; 0s ends it at once.")
@as_json_option
def rotate(key_id: str, overlap: timedelta, as_json: bool) -> None:
    """Make a key that takes another's place.

    It is printed alone, on stdout, and can't be shown again. It has the name and scopes of the old key, which works
    until the overlap ends. A key that expires is followed by one that lives as long.

    \b
    Example:
      strata keys rotate key_… --overlap 7d
    """
    with open_database() as database:
        old, new, secret = api_keys.rotate_key(database, actor(), key_id, overlap)
    if as_json:
        print_json({**plain(new), "key": secret, "replaces": plain(old)})
    else:
        click.echo(secret)
        click.echo(f"{old.id} works until {old.expires_at:%Y-%m-%d %H:%M} UTC", err=True)


def _columns(emails: dict[str, str]) -> Columns[ApiKey]:
    return {
        "id": lambda key: key.id,
        "owner": lambda key: emails.get(key.account_id),
        "name": lambda key: key.name,
        "prefix": lambda key: key.prefix,
        "scopes": lambda key: key.scopes,
        "state": _state,
        "expires": lambda key: key.expires_at,
        "last used": lambda key: key.last_used_at,
    }


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired"
    return "rotated" if key.replaced_by else "good"
