"""The command line, run as a person runs it."""
from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from frontend.accounts.api_keys import check_key
from frontend.cli import main
from frontend.db import Database


class Strata:
    """`strata` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *args: str, stdin: str = "", **env: str) -> Result:
        others = {name: None for name in os.environ if name.startswith("STRATA_")}
        return CliRunner().invoke(main, args, stdin, env={**others, "STRATA_HOME": str(self.home), **env})

    def ok(self, *args: str, stdin: str = "") -> str:
        """Run it, expect success, and return stdout."""
        done = self(*args, stdin=stdin)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    @property
    def database(self) -> Database:
        return Database(f"sqlite:///{self.home / 'strata.db'}")


@pytest.fixture
def strata(tmp_path: Path) -> Strata:
    return Strata(tmp_path / "home")


def test_setup_makes_an_admin_and_a_private_demo_key_once(strata: Strata) -> None:
    file = strata.home / "demo-key"
    strata.ok("setup", "--demo-key-file", str(file))
    secret = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert check_key(strata.database, secret.strip()) is not None
    (admin,) = json.loads(strata.ok("users", "list", "--json"))
    assert admin["role"] == "admin"

    file.chmod(0o644)
    strata.ok("setup", "--demo-key-file", str(file))
    assert file.read_text() == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(json.loads(strata.ok("keys", "list", "--json"))) == 1


def test_a_lost_demo_key_is_revoked_and_replaced(strata: Strata) -> None:
    file = strata.home / "demo-key"
    strata.ok("setup", "--demo-key-file", str(file))
    lost = file.read_text().strip()
    for content in (None, "", "strata-nonsense\n"):
        file.unlink() if content is None else file.write_text(content)
        strata.ok("setup", "--demo-key-file", str(file))
        assert check_key(strata.database, lost) is None
        lost = file.read_text().strip()
        assert check_key(strata.database, lost) is not None


def test_a_demo_key_that_was_revoked_stays_revoked(strata: Strata) -> None:
    file = strata.home / "demo-key"
    strata.ok("setup", "--demo-key-file", str(file))
    (key,) = json.loads(strata.ok("keys", "list", "--json"))
    strata.ok("keys", "revoke", key["id"])
    strata.ok("setup", "--demo-key-file", str(file))
    assert check_key(strata.database, file.read_text().strip()) is None


def test_two_setups_at_once(strata: Strata) -> None:
    command = [sys.executable, "-m", "frontend", "setup", "--demo-key-file", str(strata.home / "demo-key")]
    environment = {**os.environ, "STRATA_HOME": str(strata.home)}
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
    assert len(json.loads(strata.ok("users", "list", "--json"))) == 1


def test_users_and_keys(strata: Strata) -> None:
    assert "ada@example.org" in strata.ok("users", "create", "ada@example.org", "--password-stdin", stdin="secret\n")
    secret = strata.ok("keys", "create", "ada@example.org", "--name", "laptop")
    assert secret.count("\n") == 1
    assert check_key(strata.database, secret.strip()) is not None
    (key,) = json.loads(strata.ok("keys", "list", "ada@example.org", "--json"))
    assert (key["name"], key["prefix"], key["revoked_at"]) == ("laptop", secret[:13], None)
    assert "laptop" in strata.ok("keys", "list")
    strata.ok("keys", "revoke", key["id"])
    assert check_key(strata.database, secret.strip()) is None
    made = json.loads(strata.ok("keys", "create", "ada@example.org", "--name", "x", "--scope", "jobs", "--json"))
    assert (made["scopes"], made["key"][:13]) == (["jobs"], made["prefix"])


@pytest.mark.parametrize(("args", "code", "said"), [
    (("users", "create", "nonsense"), 1, "no email"), (("keys", "revoke", "key_x"), 1, "no key"),
    (("keys", "create", "nobody@example.org", "--name", "x"), 1, "no account"),
    (("keys", "create", "a@b.c"), 2, "--name"), (("nonsense",), 2, "nonsense"),
    (("users", "create", "a@b.c", "--password-stdin"), 2, "password"),
])
def test_exit_codes_and_one_clear_line(strata: Strata, args: tuple[str, ...], code: int, said: str) -> None:
    done = strata(*args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_setting_is_one_line(strata: Strata) -> None:
    done = strata("users", "list", STRATA_PORT="http")
    assert done.exit_code == 1
    assert done.stderr == "Error: STRATA_PORT must be a whole number from 1 to 65535\n"


def test_help_names_every_command(strata: Strata) -> None:
    for command in ("setup", "keeper", "users", "keys"):
        assert command in strata.ok("--help")
