"""`strata audit`: who did what to whom, when and from where."""
from __future__ import annotations

from datetime import datetime

import click

from frontend.accounts.audit import Action, list_events
from frontend.accounts.service import find_account, list_accounts
from frontend.cli.shared import Columns, Moment, as_json_option, open_database, show
from frontend.db.records import AuditEvent


@click.group()
def audit() -> None:
    """The audit log, which only grows.

    \b
    Examples:
      strata audit list --account ada@example.org
      strata audit list --action key:revoke --since 2026-11-01 --json
    """


@audit.command("list")
@click.option("--account", "email", help="What concerns this person's account, whoever did it.")
@click.option("--actor", help="What this one did: a person's email, cli:NAME for a user of a machine, or system.")
@click.option("--action", type=click.Choice([action.value for action in Action]), help="Only this.")
@click.option("--since", type=Moment(), help="Not before.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True,
              help="At most so many, the newest.")
@as_json_option
def list_audit(
    email: str | None, actor: str | None, action: str | None, since: datetime | None, limit: int, as_json: bool
) -> None:
    """List what people and admins did, oldest first."""
    with open_database() as database:
        account = find_account(database, email) if email else None
        if actor and "@" in actor:
            actor = find_account(database, actor).id
        events = list_events(database, account_id=account.id if account else None, actor=actor, action=action,
                             since=since, limit=limit)
        emails = {other.id: other.email for other in list_accounts(database)}
    columns: Columns[AuditEvent] = {
        "at": lambda event: event.at,
        "who": lambda event: emails.get(event.actor, event.actor),
        "from": lambda event: event.origin,
        "did": lambda event: event.action,
        "to": lambda event: event.subject,
        "of": lambda event: emails.get(event.account_id) if event.account_id else None,
        "details": lambda event: event.details,
    }
    show(events, as_json, columns)
