"""`strata requests`: what people ask for, decided once."""
from __future__ import annotations

from datetime import datetime

import click

from frontend.accounts.service import find_account, list_accounts
from frontend.budgets import token_requests as service
from frontend.cli.grants import grant_columns
from frontend.cli.shared import Columns, Moment, actor, as_json_option, open_database, show, show_one
from frontend.db.token_records import TokenRequest


@click.group()
def requests() -> None:
    """Requests for more tokens, decided once.

    \b
    Examples:
      strata requests list --status open
      strata requests approve ask_…
      strata requests reject ask_… --note "ask again in January"
    """


@requests.command("list")
@click.option("--account", "email", help="Only this person's.")
@click.option("--status", type=click.Choice(service.STATUSES), help="Only these.")
@as_json_option
def list_requests(email: str | None, status: str | None, as_json: bool) -> None:
    """List requests, decided ones too, oldest first."""
    with open_database() as database:
        account = find_account(database, email) if email else None
        found = service.list_requests(database, account.id if account else None, status)
        emails = {other.id: other.email for other in list_accounts(database)}
    show(found, as_json, _columns(emails))


@requests.command()
@click.argument("request_id")
@click.option("--tokens", type=int, help="Another amount than was asked for.")
@click.option("--note", default="", help="The Grant's note; the request's reason when left out.")
@click.option("--expires", "expires_at", type=Moment(), help="When what is left of the tokens is lost.")
@as_json_option
def approve(request_id: str, tokens: int | None, note: str, expires_at: datetime | None, as_json: bool) -> None:
    """Approve a request, which gives a Grant. A request that was decided before is refused."""
    with open_database() as database:
        grant = service.approve_request(database, actor(), request_id, tokens, note, expires_at)
        emails = {other.id: other.email for other in list_accounts(database)}
    show_one(grant, as_json, grant_columns(emails))


@requests.command()
@click.argument("request_id")
@click.option("--note", required=True, help="Why; the person reads it.")
@as_json_option
def reject(request_id: str, note: str, as_json: bool) -> None:
    """Reject a request, with a note. A request that was decided before is refused."""
    with open_database() as database:
        request = service.reject_request(database, actor(), request_id, note)
        emails = {other.id: other.email for other in list_accounts(database)}
    show_one(request, as_json, _columns(emails))


def _columns(emails: dict[str, str]) -> Columns[TokenRequest]:
    return {
        "id": lambda request: request.id,
        "of": lambda request: emails.get(request.account_id),
        "tokens": lambda request: request.amount,
        "made": lambda request: request.created_at,
        "status": lambda request: request.status,
        "decided by": lambda request: emails.get(request.decided_by or "", request.decided_by),
        "reason": lambda request: request.reason,
        "note": lambda request: request.note,
    }
