"""`strata spend`: what engines cost, and what they may."""
from __future__ import annotations

import re
from typing import Any

import click

from frontend.cli.shared import Columns, actor, as_json_option, open_database, show
from frontend.spend import limits as service
from frontend.spend.limits import Spend
from model_repository import catalog


class _Dollars(click.ParamType[float | None]):
    """An amount of dollars, or `none`."""

    name = "dollars"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """Read what was written, or fail."""
        if value == "none":
            return None
        if not re.fullmatch(r"\d{1,12}(\.\d{1,6})?", value, re.ASCII):
            self.fail(f"{value!r} is no amount of dollars: write 500 or 99.50, or none", param, ctx)
        return float(value)


def _month(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", value, re.ASCII):
        raise click.BadParameter(f"{value!r} is no month: write 2027-01")
    return value


@click.group()
def spend() -> None:
    """What engines cost while they are up, and the limits on it.

    \b
    Examples:
      strata spend show
      strata spend limit 500
      strata spend limit 120.50 --model llama-8b
    """


@spend.command("show")
@click.option("--month", callback=_month, help="Such as 2027-01, in UTC; this month when left out.")
@as_json_option
def show_spend(month: str | None, as_json: bool) -> None:
    """Show what each model cost in a month, and all together (*)."""
    with open_database() as database:
        found = service.show_spend(database, month)
    show(found, as_json, _COLUMNS)


@spend.command()
@click.argument("dollars", type=_Dollars())
@click.option("--model", type=click.Choice(list(catalog.load())), help="Limit this model; all together when left out.")
@as_json_option
def limit(dollars: float | None, model: str | None, as_json: bool) -> None:
    """Limit what a month may cost.

    In dollars, or none to take the limit away. Where a limit is reached, engines are not started and requests are
    answered 429 spend_cap until the month ends (UTC) or the limit is raised; work that runs is finished.

    \b
    Examples:
      strata spend limit 500
      strata spend limit none --model llama-8b
    """
    with open_database() as database:
        service.set_spend_limit(database, actor(), model or service.EVERYTHING, dollars)
        found = service.show_spend(database)
    show(found, as_json, _COLUMNS)


_COLUMNS: Columns[Spend] = {
    "model": lambda row: row.scope,
    "month": lambda row: row.month,
    "hours": lambda row: f"{row.hours:.2f}",
    "dollars": lambda row: f"{row.dollars:.2f}",
    "limit": lambda row: None if row.limit is None else f"{row.limit:.2f}",
}
