"""`strata grants`: tokens that admins give."""
from __future__ import annotations

from datetime import datetime

import click

from frontend.accounts.service import find_account, list_accounts
from frontend.budgets import grants as service
from frontend.cli.shared import Columns, Moment, actor, as_json_option, open_database, show, show_one
from frontend.db.token_records import Grant


@click.group()
def grants() -> None:
    """Tokens that admins give.

    \b
    Examples:
      strata grants add ada@example.org 5000000 --note "probing paper"
      strata grants list ada@example.org
    """


@grants.command()
@click.argument("email")
@click.argument("tokens", type=int)
@click.option("--note", required=True, help="What the tokens are for.")
@click.option("--expires", "expires_at", type=Moment(), help="When what is left of them is lost; never when left out.")
@as_json_option
def add(email: str, tokens: int, note: str, expires_at: datetime | None, as_json: bool) -> None:
    """Give an account tokens.

    \b
    Example:
      strata grants add ada@example.org 5000000 --note "probing paper" --expires 2027-01-31
    """
    with open_database() as database:
        account = find_account(database, email)
        grant = service.give_grant(database, actor(), account.id, tokens, note, expires_at)
    show_one(grant, as_json, grant_columns({account.id: account.email}))


@grants.command("list")
@click.argument("email", required=False)
@as_json_option
def list_grants(email: str | None, as_json: bool) -> None:
    """List the Grants of an account, or all, oldest first.

    What is spent of a Grant is looked at when another is given or expires: `strata usage show` has the balance.
    """
    with open_database() as database:
        account = find_account(database, email) if email else None
        found = service.list_grants(database, account.id if account else None)
        emails = {other.id: other.email for other in list_accounts(database)}
    show(found, as_json, grant_columns(emails))


def grant_columns(emails: dict[str, str]) -> Columns[Grant]:
    """A table of Grants, by accounts' email addresses."""
    return {
        "id": lambda grant: grant.id,
        "to": lambda grant: emails.get(grant.account_id),
        "tokens": lambda grant: grant.amount,
        "given": lambda grant: grant.given_at,
        "by": lambda grant: emails.get(grant.given_by, grant.given_by),
        "expires": lambda grant: grant.expires_at,
        "expired": lambda grant: grant.expired,
        "note": lambda grant: grant.note,
    }
