"""API keys: created, listed, rotated, revoked, checked."""
from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, select, text, update

from frontend.accounts.api_keys import SCOPES, check_key, create_key, list_keys, revoke_key, rotate_key
from frontend.accounts.audit import SYSTEM, Action, list_events
from frontend.accounts.caller import Caller
from frontend.accounts.errors import AccountError, Unknown
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.tables import accounts, api_keys, audit_events
from frontend.db.token_records import LimitOverrides

HOUR = timedelta(hours=1)


def set_times(database: Database, key_id: str, **times: datetime) -> None:
    """Let a key have been made, used or ended at other times than it was."""
    with database.write() as connection:
        connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(**times))


def test_a_key_leads_to_its_caller(database: Database, ada: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "tests", frozenset({"jobs", "usage:read"}))
    caller = check_key(database, secret)
    assert caller is not None
    assert (caller.account_id, caller.key_id, caller.scopes) == (ada.id, key.id, {"jobs", "usage:read"})
    assert list_keys(database, ada)[0].scopes == {"jobs", "usage:read"}
    assert create_key(database, SYSTEM, ada, "all")[0].scopes == SCOPES


def test_the_secret_is_nowhere_in_the_database(database: Database, ada: Account) -> None:
    key, first = create_key(database, SYSTEM, ada, "tests")
    _, _, second = rotate_key(database, SYSTEM, key.id, HOUR)
    revoke_key(database, SYSTEM, key.id)
    with database.read() as connection:
        dump = "\n".join(str(row) for table in (accounts, api_keys, audit_events)
                         for row in connection.execute(select(table)))
    for secret in (first, second):
        assert secret[:13] in dump
        assert secret[13:] not in dump


def test_expiry(database: Database, ada: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "short", expires_at=datetime.now(UTC) + HOUR)
    assert check_key(database, secret) is not None
    set_times(database, key.id, expires_at=datetime.now(UTC))
    assert check_key(database, secret) is None


def test_a_key_cannot_be_made_expired(database: Database, ada: Account) -> None:
    for expires_at in (datetime.now(UTC) - timedelta(seconds=1), datetime.max.replace(tzinfo=UTC)):
        with pytest.raises(AccountError, match="past"):
            create_key(database, SYSTEM, ada, "late", expires_at=expires_at)


def test_revoking_is_for_good_and_counts_at_once(database: Database, ada: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "tests")
    assert check_key(database, secret) is not None
    first = revoke_key(database, SYSTEM, key.id)
    assert first.revoked_at is not None
    assert check_key(database, secret) is None
    assert revoke_key(database, SYSTEM, key.id) == first
    assert [event.action for event in list_events(database)].count(Action.KEY_REVOKE) == 1


def test_wrong_names_and_scopes_are_refused(database: Database, ada: Account) -> None:
    for name in ("", "  ", "x" * 101, "a\x00b", "a\nb", "a\udcffb"):
        with pytest.raises(AccountError):
            create_key(database, SYSTEM, ada, name)
    for scopes in (frozenset[str](), frozenset({"everything"})):
        with pytest.raises(AccountError):
            create_key(database, SYSTEM, ada, "x", scopes)
    assert list_keys(database) == []


def test_somebody_elses_key_is_as_unknown_as_none(database: Database, ada: Account, eve: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "hers")
    assert list_keys(database, eve) == []
    said = set()
    for id in (key.id, "key_" + "0" * 20):
        with pytest.raises(Unknown) as revoked:
            revoke_key(database, SYSTEM, id, owner=eve)
        with pytest.raises(Unknown) as rotated:
            rotate_key(database, SYSTEM, id, HOUR, owner=eve)
        said |= {str(error.value).replace(id, "…") for error in (revoked, rotated)}
    assert len(said) == 1
    assert check_key(database, secret) is not None
    assert revoke_key(database, SYSTEM, key.id, owner=ada).revoked_at is not None


def test_a_rotated_key_works_for_the_overlap(database: Database, ada: Account) -> None:
    key, old_secret = create_key(database, SYSTEM, ada, "laptop", frozenset({"jobs"}))
    old, new, new_secret = rotate_key(database, SYSTEM, key.id, HOUR)
    assert (new.name, new.scopes, new.account_id, new.expires_at) == ("laptop", {"jobs"}, ada.id, None)
    assert old.replaced_by == new.id
    assert old.expires_at is not None
    assert timedelta(minutes=59) < old.expires_at - datetime.now(UTC) <= HOUR
    assert check_key(database, old_secret) == Caller(ada.id, old.id, frozenset({"jobs"}), 0, LimitOverrides())
    assert check_key(database, new_secret) == Caller(ada.id, new.id, frozenset({"jobs"}), 0, LimitOverrides())
    set_times(database, old.id, expires_at=datetime.now(UTC))
    assert check_key(database, old_secret) is None
    assert check_key(database, new_secret) is not None


def test_without_an_overlap_the_old_key_ends_at_once(database: Database, ada: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "laptop")
    rotate_key(database, SYSTEM, key.id, timedelta(0))
    assert check_key(database, secret) is None
    for overlap in (-HOUR, timedelta.max):
        with pytest.raises(AccountError, match="up to 365 days"):
            rotate_key(database, SYSTEM, key.id, overlap)


def test_rotating_never_lets_the_old_key_live_longer(database: Database, ada: Account) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    key, _ = create_key(database, SYSTEM, ada, "laptop", expires_at=now + 2 * HOUR)
    set_times(database, key.id, created_at=now - 10 * HOUR)
    old, new, _ = rotate_key(database, SYSTEM, key.id, 5 * HOUR)
    assert old.expires_at == now + 2 * HOUR
    assert new.expires_at == new.created_at + 12 * HOUR  # it lives as long as the old one was made for


def test_what_does_not_work_any_more_cannot_be_rotated(database: Database, ada: Account) -> None:
    revoked, _ = create_key(database, SYSTEM, ada, "revoked")
    revoke_key(database, SYSTEM, revoked.id)
    expired, _ = create_key(database, SYSTEM, ada, "expired")
    rotate_key(database, SYSTEM, expired.id, timedelta(0))
    rotated, _ = create_key(database, SYSTEM, ada, "rotated")
    rotate_key(database, SYSTEM, rotated.id, HOUR)
    before = list_keys(database)
    for key in (revoked, expired, rotated):
        with pytest.raises(AccountError, match=r"does not work any more|rotated before"):
            rotate_key(database, SYSTEM, key.id, HOUR)
    assert list_keys(database) == before


def test_of_several_rotations_at_once_one_happens(database: Database, ada: Account) -> None:
    key, _ = create_key(database, SYSTEM, ada, "laptop")
    refused = []

    def rotate() -> None:
        try:
            rotate_key(database, SYSTEM, key.id, HOUR)
        except AccountError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=rotate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    old, new = list_keys(database)
    assert old.replaced_by == new.id
    assert refused == [f"{key.id} was rotated before: {new.id} takes its place."] * 7


def test_the_last_use_is_noted_once_a_minute(database: Database, ada: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "tests")
    assert key.last_used_at is None
    check_key(database, secret)
    (used,) = list_keys(database)
    assert used.last_used_at is not None
    check_key(database, secret)
    assert list_keys(database) == [used]
    earlier = datetime.now(UTC) - timedelta(minutes=2)
    set_times(database, key.id, last_used_at=earlier)
    check_key(database, secret)
    (again,) = list_keys(database)
    assert again.last_used_at is not None
    assert again.last_used_at > earlier


def test_a_refused_key_is_not_noted_as_used(database: Database, ada: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "tests")
    revoke_key(database, SYSTEM, key.id)
    assert check_key(database, secret) is None
    assert list_keys(database)[0].last_used_at is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # which has one write lock for all
def test_a_key_is_good_also_when_its_use_cannot_be_noted(
    database: Database, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = create_key(database, SYSTEM, ada, "tests")
    monkeypatch.setattr("frontend.db.engine.PATIENCE", 0)
    impatient = Database(database.engine.url.render_as_string(hide_password=False))
    with database.write():  # another writer holds SQLite's only write lock
        assert check_key(impatient, secret) is not None
    impatient.close()
    assert list_keys(database)[0].last_used_at is None


def test_none_of_the_checks_that_start_after_a_revocation_pass(database: Database, ada: Account) -> None:
    key, secret = create_key(database, SYSTEM, ada, "tests")
    revoked, late = threading.Event(), []

    def caller() -> None:
        for _ in range(100):
            after = revoked.is_set()
            if check_key(database, secret) is not None and after:
                late.append(True)

    threads = [threading.Thread(target=caller) for _ in range(8)]
    for thread in threads:
        thread.start()
    revoke_key(database, SYSTEM, key.id)
    revoked.set()
    for thread in threads:
        thread.join()
    assert not late


def test_checking_a_key_is_one_indexed_lookup(database: Database, ada: Account) -> None:
    _, secret = create_key(database, SYSTEM, ada, "tests")
    check_key(database, secret)
    statements = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    check_key(database, secret)
    selects = [statement for statement in statements if not statement.startswith("BEGIN")]
    assert len(selects) == 1
    assert selects[0].startswith("SELECT")
    if database.engine.dialect.name == "sqlite":
        with database.read() as connection:
            plan = connection.execute(text("EXPLAIN QUERY PLAN SELECT id FROM api_keys WHERE sha256 = 'x'")).all()
        assert "INDEX" in str(plan)
