"""`strata setup`: what a new installation needs, made once."""
from __future__ import annotations

import os
import stat
import subprocess
import sys

from frontend.accounts.api_keys import check_key
from tests.unit.cli.conftest import Strata


def test_setup_makes_an_admin_and_a_private_demo_key_once(strata: Strata) -> None:
    file = strata.home / "demo-key"
    strata.ok("setup", "--demo-key-file", str(file))
    secret = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert check_key(strata.database, secret.strip()) is not None
    (admin,) = strata.json("users", "list")
    assert admin["role"] == "admin"

    file.chmod(0o644)
    strata.ok("setup", "--demo-key-file", str(file))
    assert file.read_text() == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(strata.json("keys", "list")) == 1


def test_what_setup_makes_is_in_the_audit_log(strata: Strata) -> None:
    strata.ok("setup", "--demo-key-file", str(strata.home / "demo-key"))
    assert [(event["action"], event["actor"]) for event in strata.json("audit", "list")] == [
        ("account:create", "system"), ("grant:add", "system"), ("key:create", "system")]


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
    (key,) = strata.json("keys", "list")
    strata.ok("keys", "revoke", key["id"])
    strata.ok("setup", "--demo-key-file", str(file))
    assert check_key(strata.database, file.read_text().strip()) is None


def test_two_setups_at_once(strata: Strata) -> None:
    command = [sys.executable, "-m", "frontend", "setup", "--demo-key-file", str(strata.home / "demo-key")]
    environment = {**os.environ, "STRATA_HOME": str(strata.home), "STRATA_DATABASE_URL": strata.database_url}
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
    assert len(strata.json("users", "list")) == 1
