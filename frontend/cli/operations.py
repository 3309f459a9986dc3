"""`strata setup`, `strata keeper` and `strata worker`: what runs beside the API, by the launcher or
by whoever deploys it."""
from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from frontend import logs
from frontend.accounts.first_start import ensure_admin, ensure_demo_key, ensure_demo_tokens
from frontend.cli.shared import open_database
from frontend.settings import Settings


@click.command()
@click.option("--demo-key-file", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="Where the demo key is kept, readable by its owner only.")
def setup(demo_key_file: Path) -> None:
    """Bring the database up to date and make what a new installation needs.

    That is an admin's account, and an API key and tokens to try things with. Running it again changes nothing; when the
    key's file is lost, the old demo key is revoked and a new one is made.
    """
    with open_database() as database:
        admin = ensure_admin(database)
        ensure_demo_tokens(database, admin)
        made = ensure_demo_key(database, admin, demo_key_file)
    click.echo(f"{'A new demo key is' if made else 'The demo key is'} in {demo_key_file}", err=True)


@click.command()
def worker() -> None:
    """Run a worker, which works on Jobs, until it is told to stop. Any number may run, on any machines."""
    from frontend.jobs.worker import run  # it speaks to Triton

    settings = Settings.from_environment()
    logs.configure(settings.log_level)
    run(settings)
    # Python would wait for threads that hang in a call. What they work on is given back, or soon will be.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@click.command()
def keeper() -> None:
    """Run the keeper, which keeps models Warm, until it is told to stop."""
    from frontend.keeper import run  # it speaks to Triton, which no other command needs

    settings = Settings.from_environment()
    logs.configure(settings.log_level)
    run(settings)
