"""`strata usage`: what was used, of one account or for a spreadsheet."""
from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime

import click

from frontend.accounts.service import find_account
from frontend.budgets import usage as service
from frontend.cli.shared import (
    Columns,
    Moment,
    actor,
    as_json_option,
    open_database,
    plain,
    print_json,
    show,
)
from frontend.db.token_records import DayUsage, UsageRecord


@click.group()
def usage() -> None:
    """What was used, without any texts.

    \b
    Examples:
      strata usage show ada@example.org
      strata usage export > usage.csv
      strata usage export --account ada@example.org --since 2026-11-01 --until 2026-12-01
    """


@usage.command("show")
@click.argument("email")
@click.option("--days", type=click.IntRange(1, 366), default=30, show_default=True, help="So many days, with today.")
@as_json_option
def show_usage(email: str, days: int, as_json: bool) -> None:
    """Show an account's tokens, and what it used by day (UTC) and model."""
    with open_database() as database:
        found = service.usage(database, find_account(database, email).id, days)
    if as_json:
        print_json(plain(found))
        return
    columns: Columns[DayUsage] = {
        "day": lambda day: day.day, "model": lambda day: day.model, "requests": lambda day: day.requests,
        "prompt": lambda day: day.prompt_tokens, "completion": lambda day: day.completion_tokens,
        "charged": lambda day: day.charged,
    }
    balance = found.balance
    click.echo(f"{balance.granted} granted = {balance.available} available + {balance.held} held"
               f" + {balance.charged} charged")
    show(found.days, False, columns)


@usage.command()
@click.option("--account", "email", help="Only this person's.")
@click.option("--since", type=Moment(), help="From then on.")
@click.option("--until", type=Moment(), help="Before then.")
@as_json_option
def export(email: str | None, since: datetime | None, until: datetime | None, as_json: bool) -> None:
    """Print one line for each request, by time, as CSV with a head.

    Without times, the column `charged` adds up to what the ledger has charged.
    """
    with open_database() as database:
        account_id = find_account(database, email).id if email else None
        service.note_export(database, actor(), account_id, since, until)
        records = service.export_usage(database, account_id, since, until)
        if as_json:
            _print_list(records)
        else:
            service.write_csv(records, sys.stdout)


def _print_list(records: Iterable[UsageRecord]) -> None:
    """One JSON list, written as it is read, since it may be long."""
    click.echo("[", nl=False)
    for number, one in enumerate(records):
        click.echo(",\n " if number else "", nl=False)
        print_json(plain(one), end="")
    click.echo("]")
