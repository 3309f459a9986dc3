"""`strata users`, `strata keys` and `strata audit`."""
from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest

from frontend.accounts.api_keys import check_key
from frontend.accounts.invitations import accept
from tests.unit.cli.conftest import Strata


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'home' / 'strata.db'}"


def test_users_and_keys(strata: Strata) -> None:
    assert "ada@example.org" in strata.ok("users", "create", "ada@example.org", "--password-stdin", stdin="secret\n")
    secret = strata.ok("keys", "create", "ada@example.org", "--name", "laptop")
    assert secret.count("\n") == 1
    assert check_key(strata.database, secret.strip()) is not None
    (key,) = strata.json("keys", "list", "ada@example.org")
    assert (key["name"], key["prefix"], key["revoked_at"]) == ("laptop", secret[:13], None)
    assert "laptop" in strata.ok("keys", "list")
    strata.ok("keys", "revoke", key["id"])
    assert check_key(strata.database, secret.strip()) is None
    assert "revoked" in strata.ok("keys", "list")
    made = strata.json("keys", "create", "ada@example.org", "--name", "x", "--scope", "jobs")
    assert (made["scopes"], made["key"][:13]) == (["jobs"], made["prefix"])


def test_an_invitation_prints_its_token_alone(strata: Strata) -> None:
    token = strata.ok("users", "invite", "ada@example.org")
    assert token.count("\n") == 1
    (ada,) = strata.json("users", "list")
    assert (ada["role"], ada["has_password"]) == ("member", False)
    assert accept(strata.database, token.strip(), "correct horse", "192.0.2.7").id == ada["id"]
    assert "password already" in strata.refused("users", "invite", "ada@example.org")
    made = strata.json("users", "invite", "eve@example.org", "--role", "admin", "--valid", "2d")
    assert made["role"] == "admin"
    assert accept(strata.database, made["token"], "correct horse", "192.0.2.7").id == made["id"]


def test_a_disabled_person_is_shut_out_until_enabled(strata: Strata) -> None:
    strata.ok("users", "create", "ada@example.org")
    secret = strata.ok("keys", "create", "ada@example.org", "--name", "laptop").strip()
    assert strata.json("users", "disable", "ADA@example.org")["disabled"] is True
    assert check_key(strata.database, secret) is None
    assert strata.json("users", "enable", "ada@example.org")["disabled"] is False
    assert check_key(strata.database, secret) is not None


def test_a_key_can_expire(strata: Strata) -> None:
    strata.ok("users", "create", "ada@example.org")
    made = strata.json("keys", "create", "ada@example.org", "--name", "x", "--expires", "2099-01-31")
    assert made["expires_at"] == "2099-01-31T00:00:00+00:00"
    made = strata.json("keys", "create", "ada@example.org", "--name", "x", "--expires", "2099-01-31T12:00+02:00")
    assert made["expires_at"] == "2099-01-31T10:00:00+00:00"
    assert "past" in strata.refused("keys", "create", "ada@example.org", "--name", "x", "--expires", "2020-01-31")


def test_rotating_prints_the_new_key_alone(strata: Strata) -> None:
    strata.ok("users", "create", "ada@example.org")
    old = strata.json("keys", "create", "ada@example.org", "--name", "laptop")
    new = strata.ok("keys", "rotate", old["id"])
    assert new.count("\n") == 1
    assert check_key(strata.database, new.strip()) is not None
    assert check_key(strata.database, old["key"]) is not None
    assert "rotated before" in strata.refused("keys", "rotate", old["id"])
    (_, second) = strata.json("keys", "list")
    third = strata.json("keys", "rotate", second["id"], "--overlap", "0s")
    assert third["replaces"]["id"] == second["id"]
    assert check_key(strata.database, new.strip()) is None
    assert check_key(strata.database, third["key"]) is not None


def test_what_was_done_here_is_in_the_audit_log(strata: Strata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.delenv("SUDO_USER", raising=False)
    strata.ok("users", "create", "ada@example.org", "--password-stdin", stdin="correct horse\n")
    secret = strata.ok("keys", "create", "ada@example.org", "--name", "laptop").strip()
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.1 22")
    (key,) = strata.json("keys", "list")
    strata.ok("keys", "revoke", key["id"])

    events = strata.json("audit", "list", "--account", "ada@example.org")
    assert [event["action"] for event in events] == ["account:create", "key:create", "key:revoke"]
    assert {event["actor"] for event in events} == {f"cli:{getpass.getuser()}"}
    assert events[1]["origin"] == socket.gethostname()
    assert events[2]["origin"] == f"{socket.gethostname()} via ssh from 192.0.2.7"
    assert events[2]["subject"] == key["id"]
    table = strata.ok("audit", "list")
    assert "key:revoke" in table
    assert "name=laptop" in table
    for said in (table, strata.ok("audit", "list", "--json")):
        assert "correct horse" not in said
        assert secret[13:] not in said
    assert strata.json("audit", "list", "--action", "key:create", "--limit", "1") == events[1:2]
    assert strata.json("audit", "list", "--actor", "ada@example.org") == []
    assert strata.json("audit", "list", "--since", "2099-01-01") == []


def test_a_password_is_reset_and_a_role_changed(strata: Strata) -> None:
    strata.ok("users", "create", "ada@example.org", "--password-stdin", stdin="a secret\n")
    token = strata.ok("users", "reset", "ada@example.org")
    assert token.count("\n") == 1
    accept(strata.database, token.strip(), "another secret", "10.0.0.1")
    assert strata.json("users", "role", "ada@example.org", "admin")["role"] == "admin"
    refused = strata.refused("users", "role", "ada@example.org", "member")
    assert "is the only admin" in refused
    strata.ok("users", "create", "lin@example.org")
    assert "has no password yet" in strata.refused("users", "reset", "lin@example.org")
    actions = [event["action"] for event in strata.json("audit", "list", "--account", "ada@example.org")]
    assert actions == ["account:create", "account:reset", "account:accept", "account:role"]
