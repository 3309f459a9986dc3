"""What the pages do: keys, usage, requests for tokens, people, spend, policies; as forms, without JavaScript."""
from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from flask import Flask

from frontend.accounts.api_keys import check_key, list_keys
from frontend.accounts.audit import SYSTEM, Action, list_events
from frontend.accounts.service import account_by_id, find_account
from frontend.budgets.grants import give_grant
from frontend.budgets.holds import balance
from frontend.budgets.token_requests import ask_for_tokens
from frontend.db import Database
from frontend.db import balances as rows
from frontend.db import spend as spend_rows
from frontend.db.records import Account
from frontend.db.token_records import UsageRecord
from frontend.spend.limits import show_spend
from tests.unit.web.conftest import Browser

SignIn = Callable[[Account], Browser]


def secret_on(browser: Browser) -> str:
    """The key that the page shows."""
    found = re.search(r"strata-[0-9A-Za-z]{49}", browser.page)
    assert found, browser.words
    return found[0]


def test_a_key_is_made_shown_once_rotated_and_revoked(signed_in: SignIn, database: Database, ada: Account) -> None:
    browser = signed_in(ada)
    browser.get("/keys")
    until = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%d")
    assert browser.post("/keys", name="laptop", scope=["completions", "jobs"], expires=until).status_code == 200
    first = secret_on(browser)
    caller = check_key(database, first)
    assert caller
    assert caller.scopes == {"completions", "jobs"}
    browser.get("/keys")
    assert first not in browser.page
    assert "laptop" in browser.words
    browser.get(f"/keys/{caller.key_id}/rotate")
    for hours in ("", "2", "1" * 18):
        assert browser.post(f"/keys/{caller.key_id}/rotate", overlap=hours).status_code == 400, hours
    browser.post(f"/keys/{caller.key_id}/rotate", overlap="24")
    second = secret_on(browser)
    assert check_key(database, first)
    assert check_key(database, second)
    for key in list_keys(database, ada):
        browser.get(f"/keys/{key.id}/revoke")
        assert browser.post(f"/keys/{key.id}/revoke").status_code == 303
    assert check_key(database, first) is check_key(database, second) is None
    assert [event.actor for event in list_events(database, action="key:revoke")] == [ada.id, ada.id]


@pytest.mark.parametrize("fields", [
    {"name": ""}, {"name": "x" * 101}, {"name": "x", "scope": []}, {"name": "x", "scope": "everything"},
    {"name": "x", "expires": "2020-01-01"}, {"name": "x", "expires": "soon"}])
def test_a_key_that_can_not_be_is_refused_with_a_reason(
    signed_in: SignIn, database: Database, ada: Account, fields: dict[str, object]
) -> None:
    browser = signed_in(ada)
    browser.get("/keys")
    assert browser.post("/keys", **{"scope": "completions", **fields}).status_code == 400
    assert 'role="alert"' in browser.page
    assert list_keys(database, ada) == []


def use(database: Database, account: Account, count: int, days: int = 1) -> None:
    """Have requests in the books."""
    give_grant(database, SYSTEM, account.id, 100 * count, "for tests")
    now = datetime.now(UTC)
    with database.write() as connection:
        for number in range(count):
            at, name = now - timedelta(days=number % days), f"req_{account.id[-6:]}_{number}"
            rows.add_usage(connection, UsageRecord(
                name, account.id, f"key_{number % 20}", at, f"model-{number % 4}", "/v1/completions", "=1+1", 30, 20,
                50, 0, 200, 7, "request"))


def test_usage_says_what_was_used_and_exports_it(
    signed_in: SignIn, person: Callable[..., Account], database: Database, ada: Account
) -> None:
    use(database, ada, 10)
    use(database, person("eve@example.org"), 3)
    browser = signed_in(ada)
    browser.get("/usage?days=7")
    assert "1,000 tokens available" in browser.words
    assert "500 tokens from" in browser.page
    assert "model-0 150" in browser.page, "three of ten requests"
    lines = list(csv.DictReader(io.StringIO(browser.client.get("/usage.csv").text)))
    assert len(lines) == 10
    assert {line["account_id"] for line in lines} == {ada.id}
    assert lines[0]["user"] == "'=1+1"
    (event,) = list_events(database, action=Action.USAGE_EXPORT)
    assert (event.actor, event.subject, event.account_id, event.origin) == (ada.id, ada.id, ada.id, "127.0.0.1")
    assert browser.get("/usage?days=8").status_code == 400


def test_long_periods_are_shown_by_week_and_lose_nothing(
    signed_in: SignIn, database: Database, ada: Account
) -> None:
    use(database, ada, 360, days=360)
    browser = signed_in(ada)
    for days, name in ((30, "day"), (90, "week"), (365, "week")):
        browser.get(f"/usage?days={days}")
        assert f"Tokens charged a {name}" in browser.words
        assert f"{50 * min(days, 360):,} tokens from" in browser.page
        assert browser.page.count("<g><title>") == (days if name == "day" else -(-min(days, 360) // 7))


def test_tokens_are_asked_for_and_given_or_not(
    signed_in: SignIn, database: Database, ada: Account, mira: Account
) -> None:
    member, admin = signed_in(ada), signed_in(mira)
    member.get("/usage/request")
    for amount in ("lots", "1.5", "1,5", "1,00", "-3", ""):
        assert member.post("/usage/request", amount=amount, reason="x").status_code == 400, amount
    for reason in ("first", "second"):
        member.get("/usage/request")
        assert member.post("/usage/request", amount="1,000,000", reason=reason).status_code == 303
    admin.get("/admin/requests")
    first, second = re.findall(r'action="/admin/requests/(ask_\w+)"', admin.page)
    assert admin.post(f"/admin/requests/{first}", decision="reject", amount="1", note="").status_code == 400
    admin.get("/admin/requests")
    assert admin.post(f"/admin/requests/{first}", decision="reject", amount="1", note="Not now").status_code == 303
    admin.get("/admin/requests")
    decided = admin.post(f"/admin/requests/{second}", decision="approve", amount="250 000", note="A part")
    assert decided.status_code == 303
    assert balance(database, ada.id).available == 250_000
    assert admin.get("/admin/requests").status_code == 200
    assert admin.post(f"/admin/requests/{second}", with_token=False, form_token=admin.token, decision="approve",
                      amount="1").status_code == 409
    member.get("/usage/request")
    assert "Not now" in member.words
    assert "with a Grant of 250,000 tokens" in member.words


def test_no_tokens_are_not_what_was_asked_for(
    signed_in: SignIn, database: Database, ada: Account, mira: Account
) -> None:
    asked = ask_for_tokens(database, SYSTEM, ada.id, 5000, "a sweep")
    admin = signed_in(mira)
    admin.get("/admin/requests")
    assert admin.post(f"/admin/requests/{asked.id}", decision="approve", amount="0").status_code == 400
    assert balance(database, ada.id).granted == 0


def test_a_last_day_is_shown_as_it_was_chosen(signed_in: SignIn, database: Database, ada: Account) -> None:
    browser = signed_in(ada)
    browser.get("/keys")
    browser.post("/keys", name="laptop", scope="completions", expires="2030-01-31")
    assert "2030-01-31" in browser.words
    (key,) = list_keys(database, ada)
    assert key.expires_at == datetime(2030, 1, 31, 23, 59, 59, tzinfo=UTC)


def test_people_are_invited_changed_and_shut_out(
    signed_in: SignIn, app: Flask, database: Database, ada: Account, mira: Account
) -> None:
    admin = signed_in(mira)
    admin.get("/admin/people")
    admin.post("/admin/people", email="Lin@Example.org", role="")
    link = re.search(r"http://127.0.0.1:8080(/join\?token=[\w-]+)", admin.page)
    assert link
    theirs = Browser(app)
    theirs.get(link[1])
    assert "lin@example.org" in theirs.words
    page = f"/admin/people/{ada.id}"
    admin.get(page)
    admin.post(f"{page}/role", role="admin")
    assert account_by_id(database, ada.id).role == "admin"
    admin.get(page)
    admin.post(f"{page}/state", to="disabled")
    assert account_by_id(database, ada.id).disabled
    admin.get(page)
    assert admin.post(f"/admin/people/{mira.id}/role", role="member").status_code == 400, "the last admin stays one"
    admin.get(page)
    assert admin.post(f"/admin/people/{mira.id}/state", to="disabled").status_code == 400
    admin.get(page)
    assert admin.post(f"{page}/grant", amount="5000", note="a start").status_code == 303
    assert balance(database, ada.id).available == 5000
    admin.get(page)
    admin.post(f"{page}/state", to="enabled")
    admin.get(page)
    admin.post(f"{page}/reset")
    assert "/join?token=" in admin.page
    assert find_account(database, "lin@example.org").role == "member"


def test_spend_is_drawn_and_limited(signed_in: SignIn, database: Database, mira: Account) -> None:
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    with database.write() as connection:
        spend_rows.add_day(connection, "llama-8b", today, 3_000_000, 7_200_000)
    admin = signed_in(mira)
    admin.get("/admin/spend")
    assert f"{today}: llama-8b 6" in admin.page
    admin.post("/admin/spend", scope="*", dollars="250")
    assert show_spend(database)[-1].limit == 250
    admin.get("/admin/spend")
    assert 'class="limit"' in admin.page
    assert admin.post("/admin/spend", scope="nothing", dollars="1").status_code == 400
    admin.get("/admin/spend")
    admin.post("/admin/spend", scope="*", dollars="")
    assert show_spend(database)[-1].limit is None
    assert admin.get("/admin/spend?month=2026-13").status_code == 400


def test_health_says_what_is_away(signed_in: SignIn, mira: Account) -> None:
    admin = signed_in(mira)
    assert admin.get("/admin/health").status_code == 200
    assert "Something does not answer" in admin.words
    assert "Database answers" in admin.words
    assert "Keeper away" in admin.words


def test_models_and_their_pages_say_that_no_triton_answers(signed_in: SignIn, mira: Account) -> None:
    admin = signed_in(mira)
    for path in ("/models", "/workbench", "/admin/models"):
        answer = admin.get(path)
        assert answer.status_code == 503
        assert answer.mimetype == "text/html"
