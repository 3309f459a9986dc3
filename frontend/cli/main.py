"""`strata` itself: its topics, and how whatever goes wrong in them ends in one line and an exit code."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from sqlalchemy.exc import DBAPIError

from frontend.accounts.errors import AccountError
from frontend.cli import audit, grants, jobs, keys, models, operations, requests, spend, usage, users
from frontend.db.migrate import MigrationError
from frontend.errors import ApiError
from frontend.settings import SettingsError

_REFUSALS = (SettingsError, MigrationError, AccountError, ApiError, OSError)


class _Usage(click.ClickException):
    """Wrong usage, in one line."""

    exit_code = 2


class _Strata(click.Group):
    """The group of all topics."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse our own options."""
        with _in_one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse and run a command."""
        with _in_one_line():
            return super().invoke(ctx)


@contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # a topic without a command shows its help
    except BrokenPipeError:
        raise  # who reads what we print has seen enough
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "strata"
        raise _Usage(f"{' '.join(error.format_message().split()).rstrip('.')} (see '{path} --help')") from None
    except UnicodeError:
        raise click.ClickException("What was given is no valid text.") from None
    except _REFUSALS as error:
        raise click.ClickException(" ".join(str(error).split())) from error
    except DBAPIError as error:
        raise click.ClickException(f"The database can't be used: {' '.join(str(error.orig).split())}") from error


@click.group(cls=_Strata, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Strata: people, their API keys and tokens, spend, and the parts that run beside the API.

    The environment's STRATA_* settings say which database is meant: STRATA_DATABASE_URL, or the one in STRATA_HOME.
    Every command that prints something prints JSON with --json. Exit codes: 0 done, 1 refused, 2 wrong usage.

    \b
    Examples:
      strata users invite ada@example.org
      strata keys create ada@example.org --name laptop
      strata grants add ada@example.org 5000000 --note "probing paper"
      strata audit list --since 2026-11-01 --json
    """


for topic in (users.users, keys.keys, grants.grants, requests.requests, usage.usage, spend.spend, models.models,
              jobs.jobs, audit.audit, operations.setup, operations.keeper, operations.worker):
    main.add_command(topic)
