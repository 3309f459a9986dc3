"""The command line, run as a person runs it."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from frontend.cli import main
from frontend.db import Database


class Strata:
    """`strata` in a home of its own, on a database of its own."""

    def __init__(self, home: Path, database_url: str) -> None:
        self.home = home
        self.database_url = database_url

    def __call__(self, *args: str, stdin: str = "", **env: str) -> Result:
        others = {name: None for name in os.environ if name.startswith("STRATA_")}
        ours = {"STRATA_HOME": str(self.home), "STRATA_DATABASE_URL": self.database_url}
        return CliRunner().invoke(main, args, stdin, env={**others, **ours, **env}, prog_name="strata")

    def ok(self, *args: str, stdin: str = "") -> str:
        """Run it, expect success, and return stdout."""
        done = self(*args, stdin=stdin)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def json(self, *args: str, stdin: str = "") -> Any:
        """Run it with --json, expect success, and return what it prints."""
        return json.loads(self.ok(*args, "--json", stdin=stdin))

    def refused(self, *args: str) -> str:
        """Run it, expect that it is refused in one line, and return that."""
        done = self(*args)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), (done.stdout, done.stderr)
        return done.stderr

    @property
    def database(self) -> Database:
        return Database(self.database_url)


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'home' / 'strata.db'}"


@pytest.fixture
def strata(tmp_path: Path, database_url: str) -> Strata:
    return Strata(tmp_path / "home", database_url)
