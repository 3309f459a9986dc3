"""The audit log: every act is in it, with who and from where, and nobody can change it."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from frontend.accounts.api_keys import create_key, revoke_key, rotate_key
from frontend.accounts.audit import SYSTEM, Action, Actor, list_events, record
from frontend.accounts.service import create_account, set_disabled
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.tables import audit_events

ADMIN = Actor("acct_admin", "192.0.2.7")


def test_every_act_is_noted_with_who_whom_when_and_from_where(database: Database) -> None:
    before = datetime.now(UTC)
    ada = create_account(database, ADMIN, "ada@example.org")
    key, _ = create_key(database, Actor(ada.id, "198.51.100.1"), ada, "laptop", frozenset({"jobs"}))
    old, new, _ = rotate_key(database, ADMIN, key.id, timedelta(0))
    revoke_key(database, ADMIN, new.id)
    set_disabled(database, SYSTEM, ada, True)
    events = list_events(database, account_id=ada.id)
    assert [(event.action, event.actor, event.origin, event.subject) for event in events] == [
        ("account:create", "acct_admin", "192.0.2.7", ada.id),
        ("key:create", ada.id, "198.51.100.1", key.id),
        ("key:rotate", "acct_admin", "192.0.2.7", key.id),
        ("key:revoke", "acct_admin", "192.0.2.7", new.id),
        ("account:disable", "system", SYSTEM.origin, ada.id),
    ]
    assert all(before <= event.at <= datetime.now(UTC) for event in events)
    assert [event.id for event in events] == sorted({event.id for event in events})
    assert events[0].details == {"email": "ada@example.org", "role": "member"}
    assert events[1].details == {"name": "laptop", "scopes": ["jobs"], "expires_at": None}
    assert events[2].details["new_key"] == new.id
    assert old.expires_at is not None


def test_an_act_that_fails_is_not_noted(database: Database, ada: Account) -> None:
    def fail_late() -> None:
        with database.write() as connection:
            record(connection, ADMIN, Action.KEY_REVOKE, "key_x", ada.id)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_late()
    assert [event.action for event in list_events(database)] == [Action.ACCOUNT_CREATE]


def test_events_are_found_by_whom_who_what_and_when(database: Database, ada: Account, eve: Account) -> None:
    for account in (ada, eve, ada):
        set_disabled(database, ADMIN, account, disabled=True)
        set_disabled(database, ADMIN, account, disabled=False)
    assert len(list_events(database)) == 8
    assert {event.account_id for event in list_events(database, account_id=eve.id)} == {eve.id}
    assert [event.action for event in list_events(database, actor="system")] == [Action.ACCOUNT_CREATE] * 2
    disabled = list_events(database, action=Action.ACCOUNT_DISABLE)
    assert [event.account_id for event in disabled] == [ada.id, eve.id, ada.id]
    assert list_events(database, action=Action.ACCOUNT_DISABLE, limit=2) == disabled[1:]
    assert list_events(database, since=disabled[2].at, action=Action.ACCOUNT_DISABLE) == disabled[2:]
    assert list_events(database, since=datetime.now(UTC) + timedelta(hours=1)) == []


@pytest.mark.parametrize("change", [
    update(audit_events).values(actor="somebody else"),
    delete(audit_events),
    text("INSERT INTO audit_events (id, at, actor, origin, action, subject, details) "
         "VALUES (1, '2026-01-01', 'x', 'x', 'x', 'x', '{}') ON CONFLICT (id) DO UPDATE SET actor = 'x'"),
])
def test_neither_change_nor_removal(database: Database, ada: Account, change: object) -> None:
    before = list_events(database)
    with pytest.raises(IntegrityError, match="append-only"), database.write() as connection:
        connection.execute(change)  # type: ignore[call-overload]
    assert list_events(database) == before


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", ["INSERT OR REPLACE", "REPLACE"])
def test_sqlite_does_not_replace_either(database: Database, ada: Account, how: str) -> None:
    before = list_events(database)
    with pytest.raises(IntegrityError, match="append-only"), database.write() as connection:
        connection.execute(text(f"{how} INTO audit_events (id, at, actor, origin, action, subject, details) "
                                "VALUES (1, '2026-01-01', 'x', 'x', 'x', 'x', '{}')"))
    assert list_events(database) == before


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["TRUNCATE audit_events", "TRUNCATE audit_events CASCADE",
                                 "SET session_replication_role = replica; DELETE FROM audit_events"])
def test_postgresql_does_not_truncate_either(database: Database, ada: Account, how: str) -> None:
    before = list_events(database)
    with pytest.raises(DBAPIError, match="append-only"), database.write() as connection:
        connection.execute(text(how))
    assert list_events(database) == before


def test_long_names_are_cut_and_not_refused(database: Database, ada: Account) -> None:
    with database.write() as connection:
        record(connection, Actor("cli:" + "x" * 300, "y" * 300), Action.KEY_REVOKE, "key_x", ada.id, {"é": "☃\x00"})
    event = list_events(database)[-1]
    assert (len(event.actor), len(event.origin), event.details) == (254, 254, {"é": "☃\x00"})
