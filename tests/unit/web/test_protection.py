"""What keeps other sites, other people and their words away from a person's pages."""
from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from flask import Flask

from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import Actor
from frontend.api.parts import EXTENSION
from frontend.budgets.grants import give_grant
from frontend.budgets.token_requests import approve_request, ask_for_tokens, reject_request
from frontend.db import Database
from frontend.db.records import Account
from tests.unit.web.conftest import Browser

SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
#: Paths that are the API's, which keys protect and not forms.
_API = ("/v1/", "/healthz", "/readyz", "/openapi.json")


def rules(app: Flask, method: str) -> list[str]:
    """Every path of the App with a method, filled in."""
    found = []
    for rule in app.url_map.iter_rules():
        if method in (rule.methods or ()) and not rule.rule.startswith(_API):
            found.append(re.sub(r"<[^>]*>", "x", rule.rule))
    return found


def test_every_form_without_its_token_is_refused(
    app: Flask, signed_in: Callable[[Account], Browser], mira: Account
) -> None:
    browser = signed_in(mira)
    forms = rules(app, "POST")
    assert len(forms) >= 20
    for path in forms:
        assert browser.post(path, with_token=False).status_code == 403, path
        assert browser.post(path, with_token=False, form_token="0" * 64).status_code == 403, path
        browser.get("/account")
        answer = browser.client.post(path, data={"form_token": browser.token}, headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 403, path


def test_a_token_is_good_in_its_own_browser_only(
    signed_in: Callable[[Account], Browser], ada: Account, mira: Account
) -> None:
    theirs, hers = signed_in(mira), signed_in(ada)
    theirs.get("/account")
    assert hers.post("/keys", with_token=False, form_token=theirs.token, name="x", scope="jobs").status_code == 403


def test_admin_pages_are_not_there_for_members(
    app: Flask, signed_in: Callable[[Account], Browser], ada: Account, mira: Account
) -> None:
    browser = signed_in(ada)
    pages = [path for path in rules(app, "GET") if path.startswith("/admin")]
    assert len(pages) >= 7
    for path in pages:
        assert browser.get(path).status_code == 404, path
    browser.get("/account")
    token = browser.token
    for path in rules(app, "POST"):
        if path.startswith("/admin"):
            assert browser.post(path, with_token=False, form_token=token).status_code == 404, path
    browser.get("/usage")
    assert "Admin" not in browser.words


@pytest.mark.parametrize("act", ["revoke", "rotate"])
def test_the_keys_of_others_are_not_there(
    signed_in: Callable[[Account], Browser], database: Database, ada: Account, mira: Account, act: str
) -> None:
    key, _ = create_key(database, Actor(mira.id, "test"), mira, "mira's key")
    browser = signed_in(ada)
    assert browser.get(f"/keys/{key.id}/{act}").status_code == 404
    browser.get("/account")
    assert browser.post(f"/keys/{key.id}/{act}", overlap="0").status_code == 404
    browser.get("/keys")
    assert "mira's key" not in browser.words


def test_no_page_needs_anything_from_elsewhere_or_inline(
    app: Flask, signed_in: Callable[[Account], Browser], mira: Account
) -> None:
    browser = signed_in(mira)
    for path in rules(app, "GET"):
        answer = browser.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        if answer.mimetype == "text/html":
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", browser.page), path
            for address in re.findall(r'(?:src|action|<link[^>]*href|<script[^>]*src)="([^"]*)"', browser.page):
                assert address.startswith("/"), (path, address)


def test_what_people_write_is_never_markup(
    signed_in: Callable[[Account], Browser], database: Database, ada: Account, mira: Account
) -> None:
    browser = signed_in(ada)
    browser.get("/keys")
    browser.post("/keys", name=SCRIPT, scope="completions")
    ask_for_tokens(database, Actor(ada.id, SCRIPT), ada.id, 5, SCRIPT)
    browser.client.get("/usage", headers={"User-Agent": SCRIPT})
    seen = [browser.get(path) for path in ("/keys", "/usage", "/usage/request", "/account", "/sign-in?next=/" + SCRIPT)]
    admin = signed_in(mira)
    seen += [admin.get(path) for path in ("/admin/requests", f"/admin/people/{ada.id}", "/admin/audit",
                                          "/admin/audit?account=" + SCRIPT)]
    assert sum(SCRIPT[2:10] in answer.text or "&lt;script&gt;" in answer.text for answer in seen) >= 5
    for answer in seen:
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text


def test_notes_of_grants_and_decisions_are_never_markup(
    signed_in: Callable[[Account], Browser], database: Database, ada: Account, mira: Account
) -> None:
    by = Actor(mira.id, "127.0.0.1")
    give_grant(database, by, ada.id, 1000, f"grant {SCRIPT}")
    for decide in (reject_request, approve_request):
        asked = ask_for_tokens(database, Actor(ada.id, "127.0.0.1"), ada.id, 5, "more")
        decide(database, by, asked.id, note=f"{decide.__name__} {SCRIPT}")
    hers, theirs = signed_in(ada), signed_in(mira)
    shown = {"/usage": hers, "/usage/request": hers, f"/admin/people/{ada.id}": theirs, "/admin/requests": theirs,
             "/admin/audit": theirs}
    for path, browser in shown.items():
        browser.get(path)
        assert "<script>alert" not in browser.page, path
        assert "<img src=x" not in browser.page, path
        assert "&lt;img src=x onerror" in browser.page, f"{path} shows a note as a text"
    for words, path in (("grant", "/usage"), ("approve_request", "/usage"), ("reject_request", "/usage/request")):
        hers.get(path)
        assert f"{words} {SCRIPT}" in unescape(hers.page), path


def test_a_database_that_is_away_is_a_page_too(
    app: Flask, signed_in: Callable[[Account], Browser], ada: Account, tmp_path: Path
) -> None:
    browser = signed_in(ada)
    app.extensions[EXTENSION].database.close()
    (tmp_path / "strata.db").rename(tmp_path / "elsewhere")
    (tmp_path / "strata.db").mkdir()
    for path in ("/usage", "/nothing"):
        answer = browser.get(path)
        assert (answer.status_code, answer.mimetype) == (503 if path == "/usage" else 404, "text/html")
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    answer = browser.get("/usage")
    assert "The database does not answer." in browser.words
    assert answer.headers["x-request-id"] in browser.words, "what people are to send along"
    assert answer.headers["Retry-After"] == "5"


def test_what_is_not_there_is_a_page_for_browsers_and_json_for_programs(browser: Browser) -> None:
    for accepted in ("text/html", "text/html,application/xhtml+xml,image/avif,*/*;q=0.8"):
        assert browser.get("/nothing", Accept=accepted).mimetype == "text/html"
    answer = browser.get("/nothing")
    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "Content-Security-Policy" in answer.headers
    answer = browser.client.get("/nothing")
    assert answer.json["error"]["code"] == "not_found"
    assert browser.get("/v1/nothing").mimetype == "application/json"
