"""How people come in: passwords, invitations, resets, sessions; and how nobody else does."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from flask import Flask

from frontend.accounts.audit import SYSTEM, list_events
from frontend.accounts.invitations import invite, reset_password
from frontend.accounts.service import set_disabled
from frontend.accounts.sessions import IDLE, list_sessions
from frontend.api.parts import EXTENSION
from frontend.app import create_app
from frontend.db import Database
from frontend.db.records import Account
from frontend.db.web_tables import sessions
from frontend.settings import Settings
from frontend.web.forms import place
from tests.unit.web.conftest import PASSWORD, Browser

COOKIE = "strata_session"


def test_a_password_lets_in_and_signing_out_shuts(browser: Browser, ada: Account) -> None:
    assert browser.get("/usage").headers["Location"] == "/sign-in?next=/usage"
    answer = browser.sign_in(ada.email, next="/usage")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/usage")
    assert browser.get("/usage").status_code == 200
    browser.post("/sign-out")
    assert browser.get("/usage").status_code == 303


def test_a_part_of_a_page_leads_the_whole_page_to_sign_in(browser: Browser) -> None:
    answer = browser.get("/jobs/rows", **{"HX-Request": "true", "HX-Current-URL": "http://127.0.0.1:8080/jobs"})
    assert (answer.status_code, answer.headers["HX-Redirect"], answer.text) == (401, "/sign-in?next=/jobs", "")


def test_the_cookie_is_good_for_nothing_once_signed_out(app: Flask, browser: Browser, ada: Account) -> None:
    browser.sign_in(ada.email)
    cookie = browser.client.get_cookie(COOKIE)
    assert cookie
    browser.get("/usage")
    browser.post("/sign-out")
    thief = Browser(app)
    thief.client.set_cookie(COOKIE, cookie.value)
    assert thief.get("/usage").status_code == 303


def test_whatever_is_wrong_is_refused_alike(browser: Browser, ada: Account) -> None:
    for email, password in ((ada.email, "wrong horse"), ("nobody@example.org", PASSWORD), ("no email", PASSWORD),
                            (ada.email, ""), (ada.email, "x" * 5000)):
        assert browser.sign_in(email, password).status_code == 401
        assert "No account has this email and this password." in browser.words
        assert browser.client.get_cookie(COOKIE) is None


def test_a_disabled_person_is_out_at_once_and_stays_out(
    signed_in: Callable[[Account], Browser], browser: Browser, database: Database, ada: Account
) -> None:
    theirs = signed_in(ada)
    set_disabled(database, SYSTEM, ada, True)
    assert theirs.get("/usage").status_code == 303
    assert browser.sign_in(ada.email).status_code == 401
    set_disabled(database, SYSTEM, ada, False)
    assert theirs.get("/usage").status_code == 303, "sessions of before do not come back"


def test_a_session_is_never_one_that_the_browser_had_before(app: Flask, browser: Browser, ada: Account) -> None:
    planted = "A" * 43
    browser.client.set_cookie(COOKIE, planted)
    browser.sign_in(ada.email)
    fresh = browser.client.get_cookie(COOKIE)
    assert fresh
    assert fresh.value != planted
    thief = Browser(app)
    thief.client.set_cookie(COOKIE, planted)
    assert thief.get("/usage").status_code == 303


def test_guessing_is_slow(browser: Browser, ada: Account) -> None:
    statuses = [browser.sign_in(ada.email, f"guess {number}").status_code for number in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert browser.sign_in(ada.email).status_code == 429, "also with the right password"
    assert browser.sign_in("other@example.org", "x").status_code == 401, "others are not locked out"


ELSEWHERE = ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "", "evil.example",
             "/x\r\nSet-Cookie: y", "/\t/evil.example", "http:/evil.example", "/\u2028", "\\\\evil.example")


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_no_address_of_another_site_is_a_place_to_go_to(elsewhere: str) -> None:
    assert place(elsewhere) == "/"


def test_signing_in_leads_nowhere_else(browser: Browser, ada: Account) -> None:
    assert browser.sign_in(ada.email, next="//evil.example").headers["Location"] == "/"
    assert browser.get("/sign-in?next=//evil.example").headers["Location"] == "/"
    assert browser.get("/sign-in?next=/keys?x=%2F").headers["Location"] == "/keys?x=/"


def test_an_invitation_lets_a_person_choose_a_password_once(browser: Browser, app: Flask, database: Database) -> None:
    _, _, token = invite(database, SYSTEM, "lin@example.org")
    browser.get(f"/join?token={token}")
    assert "lin@example.org" in browser.words
    assert browser.post("/join", token=token, password="short").status_code == 400
    assert f'name="token" value="{token}"' in browser.page
    assert browser.post("/join", token=token, password="a new password").status_code == 303
    assert browser.get("/usage").status_code == 200
    again = Browser(app)
    assert again.get(f"/join?token={token}").status_code == 400
    again.get("/sign-in")
    assert again.post("/join", token=token, password="another one").status_code == 400
    assert again.sign_in("lin@example.org", "a new password").status_code == 303


def test_a_reset_takes_the_place_of_the_password_and_ends_all_sessions(
    signed_in: Callable[[Account], Browser], browser: Browser, database: Database, ada: Account
) -> None:
    old = signed_in(ada)
    _, token = reset_password(database, SYSTEM, ada)
    assert old.get("/usage").status_code == 200
    browser.get(f"/join?token={token}")
    assert browser.post("/join", token=token, password="another horse").status_code == 303
    assert old.get("/usage").status_code == 303
    assert old.sign_in(ada.email).status_code == 401
    assert old.sign_in(ada.email, "another horse").status_code == 303


def test_another_password_ends_links_that_choose_one(
    signed_in: Callable[[Account], Browser], browser: Browser, database: Database, ada: Account
) -> None:
    _, token = reset_password(database, SYSTEM, ada)
    here = signed_in(ada)
    here.get("/account")
    assert here.post("/account/password", old=PASSWORD, new="a new password").status_code == 200
    assert browser.get(f"/join?token={token}").status_code == 400


def test_guesses_at_invitations_shut_nobody_elses(browser: Browser, database: Database) -> None:
    _, _, token = invite(database, SYSTEM, "lin@example.org")
    browser.get("/sign-in")
    form = {"form_token": browser.token, "password": "a new password"}
    guessed = [browser.post("/join", with_token=False, token=f"guess {number}", **form).status_code
               for number in range(12)]
    assert guessed == [400] * 12
    browser.get(f"/join?token={token}")
    assert browser.post("/join", token=token, password="a new password").status_code == 303


def test_sessions_are_listed_and_ended_one_by_one(
    signed_in: Callable[[Account], Browser], person: Callable[..., Account], database: Database, ada: Account
) -> None:
    here, there, stranger = signed_in(ada), signed_in(ada), signed_in(person("eve@example.org"))
    found = list_sessions(database, ada.id)
    assert len(found) == 2
    here.get("/account")
    assert here.page.count("/account/sessions/sess_") == 2
    stranger.get("/account")
    for session in found:
        assert stranger.post(f"/account/sessions/{session.id}/end").status_code == 404
    assert here.get("/usage").status_code == there.get("/usage").status_code == 200
    here.get("/account")
    assert here.post(f"/account/sessions/{found[0].id}/end").status_code == 303  # the newest: there
    assert (here.get("/usage").status_code, there.get("/usage").status_code) == (200, 303)
    assert [event.action for event in list_events(database, actor=ada.id)] == ["session:end"]


def test_a_session_ends_when_nobody_comes(
    signed_in: Callable[[Account], Browser], database: Database, ada: Account
) -> None:
    browser = signed_in(ada)
    (session,) = list_sessions(database, ada.id)
    with database.write() as connection:
        connection.execute(sessions.update().values(last_seen_at=session.last_seen_at - IDLE))
    assert browser.get("/usage").status_code == 303
    assert list_sessions(database, ada.id) == []


def test_guesses_at_signing_in_do_not_keep_a_person_from_another_password(
    app: Flask, signed_in: Callable[[Account], Browser], ada: Account
) -> None:
    while app.extensions[EXTENSION].attempts.allowed("127.0.0.1", ada.email):
        pass
    here = signed_in(ada)
    here.get("/account")
    assert here.post("/account/password", old="wrong", new="a new password").status_code == 400
    for _ in range(9):
        app.extensions[EXTENSION].attempts.allowed("127.0.0.1", f"password {ada.id}")
    here.get("/account")
    assert here.post("/account/password", old=PASSWORD, new="a new password").status_code == 429


def test_another_password_signs_others_out(signed_in: Callable[[Account], Browser], ada: Account) -> None:
    here, there = signed_in(ada), signed_in(ada)
    here.get("/account")
    assert here.post("/account/password", old="wrong", new="a new password").status_code == 400
    here.get("/account")
    assert here.post("/account/password", old=PASSWORD, new="a new password").status_code == 200
    assert (here.get("/usage").status_code, there.get("/usage").status_code) == (200, 303)


def cookies(app: Flask, email: str) -> list[str]:
    browser = Browser(app)
    return browser.get("/sign-in").headers.getlist("Set-Cookie") + browser.sign_in(email).headers.getlist("Set-Cookie")


def test_cookies_are_kept_from_scripts_and_other_sites(app: Flask, ada: Account) -> None:
    for cookie in cookies(app, ada.email):
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert "Path=/" in cookie
        assert "Domain" not in cookie


def test_over_https_cookies_are_secure_and_bound_to_the_host(settings: Settings, ada: Account) -> None:
    app = create_app(replace(settings, public_url="https://strata.example"))
    made = [cookie for cookie in cookies(app, ada.email) if "Max-Age=0" not in cookie]
    assert {cookie.partition("=")[0] for cookie in made} == {"__Host-strata_form", "__Host-strata_session"}
    assert all("; Secure" in cookie for cookie in made)
    assert "max-age" in Browser(app).get("/").headers["Strict-Transport-Security"]
