"""Every page: no serious violation for axe-core, light enough, nothing wider than the screen, no request elsewhere."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Request, Response, expect

from frontend.accounts.api_keys import create_key, list_keys
from frontend.accounts.audit import Actor
from frontend.budgets.token_requests import ask_for_tokens
from frontend.db import Database
from frontend.web.docs import PAGES
from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
SCREENSHOTS = Path(__file__).with_name("screenshots")
ANYBODY = ("/", "/sign-in", "/join", "/docs/quickstart", "/docs/completions", "/nothing")
MEMBER = ("/keys", "/usage", "/usage/request", "/jobs", "/models", "/workbench", "/account")
ADMIN = ("/admin/people", "/admin/requests", "/admin/spend", "/admin/models", "/admin/audit", "/admin/health")
DOCUMENTATION = tuple(f"/docs/{name}" for group in PAGES.values() for name in group)
MOST_BYTES = 150_000
#: The pages of which pictures are kept: small, and few.
PICTURES = ("/usage", "/workbench")


class Weight:
    """What a page loads, each from an empty cache."""

    def __init__(self, page: Page, url: str) -> None:
        self.bytes, self.elsewhere, self._host = 0, [], urlsplit(url).netloc  # type: ignore[var-annotated]
        page.on("request", self._asked)
        page.on("response", self._answered)

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).netloc not in (self._host, "") and not request.url.startswith("data:"):
            self.elsewhere.append(request.url)

    def _answered(self, response: Response) -> None:
        self.bytes += int(response.headers.get("content-length", 0))


def check(visitor: Visitor, path: str) -> None:
    """Look at one page with an empty cache."""
    session = visitor.context.new_cdp_session(visitor.page)
    session.send("Network.clearBrowserCache")
    page = visitor.page
    weight = Weight(page, visitor.url)
    page.goto(visitor.url + path, wait_until="load")
    assert 1000 < weight.bytes < MOST_BYTES, path
    assert weight.elsewhere == [], path
    look(page, path)


def look(page: Page, what: str) -> None:
    """Look at what is on the screen now."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), what
    found = Axe().run(page).response["violations"]
    serious = [(one["id"], [node["target"] for node in one["nodes"]]) for one in found
               if one["impact"] in ("serious", "critical")]
    assert serious == [], what


def check_things(visitor: Visitor, database: Database) -> None:
    """Look at the pages of single things of somebody who is signed in: a new key, keys, and a Job with results,
    errors and Activations."""
    page = visitor.page
    visitor.open("/keys")
    page.get_by_label("Name").fill("notebook")
    page.get_by_role("button", name="Create the key").click()
    secret = page.locator(".secret code").inner_text()
    look(page, "a new key")
    (key,) = (key for key in list_keys(database, visitor.account) if key.name == "notebook")
    for path in ("rotate", "revoke"):
        check(visitor, f"/keys/{key.id}/{path}")
    with httpx.Client(base_url=visitor.url, headers={"Authorization": f"Bearer {secret}"}, timeout=90) as client:
        job = client.post("/v1/jobs", json={"requests": [
            {"custom_id": str(number), "body": {"model": "tiny-llama", "prompt": [number] * length, "max_tokens": 2,
                                                "activations": {"layers": [0], "positions": "last"}}}
            for number, length in enumerate((3, 3, 2047))]}).raise_for_status().json()
        path = f"/jobs/{job['id']}"
        check(visitor, path)
        ended = client.get(f"/v1{path}?wait=60").json()
    assert ended["counts"] == {"total": 3, "completed": 2, "failed": 1}
    visitor.open(path)
    expect(page.get_by_text("context_length_exceeded")).to_be_visible()
    check(visitor, path)
    check(visitor, f"{path}/erase")


def check_workbench(visitor: Visitor) -> None:
    """Look at what the Workbench draws of a model."""
    page = visitor.page
    visitor.open("/workbench")
    page.locator("[name=model]").select_option("tiny-llama")
    for field, value in {"max_tokens": "4", "temperature": "0.9", "n": "2", "prompt_logprobs": "2"}.items():
        page.locator(f"[name={field}]").fill(value)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".choice .tok")).to_have_count(8)
    page.locator(".choice .tok").first.hover()
    look(page, "continuations")
    for tab in ("Prompt", "Show code", "Layers"):
        page.get_by_role("tab", name=tab).click()
        if tab == "Layers":
            page.get_by_role("button", name="Look inside").click()
            expect(page.locator("#lens table")).to_have_count(2)
        look(page, tab)


def furnish(database: Database, visitor: Visitor) -> None:
    """Have something on the pages."""
    by = Actor(visitor.account.id, "127.0.0.1")
    for name in ("laptop", "cluster"):
        create_key(database, by, visitor.account, name)
    ask_for_tokens(database, by, visitor.account.id, 2_000_000, "A sweep over all Layers of the demo model.")


def test_pages_are_accessible_light_and_fit(visit: Visit, database: Database) -> None:
    """In one look; the slow test has them all."""
    mira = visit("admin", 100_000, viewport={"width": 375, "height": 900}, color_scheme="dark")
    furnish(database, mira)
    for path in ANYBODY:
        check(mira, path)
    mira.sign_in()
    for path in (*MEMBER, *ADMIN, f"/admin/people/{mira.account.id}"):
        check(mira, path)


def test_pages_about_one_thing_are_accessible_too(visit: Visit, database: Database) -> None:
    """Of a member's, who sees no admin's pages."""
    ada = visit("member", 100_000, viewport={"width": 375, "height": 900}, color_scheme="light")
    ada.sign_in()
    check_things(ada, database)
    check_workbench(ada)


LOOKS = [(1440, "dark"), (375, "light"), (1440, "light"), (375, "dark")]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_every_page_in_every_look(visit: Visit, database: Database, width: int, theme: str) -> None:
    mira = visit("admin", 100_000, viewport={"width": width, "height": 900}, color_scheme=theme)
    furnish(database, mira)
    for path in (*ANYBODY, *DOCUMENTATION):
        check(mira, path)
    mira.sign_in()
    for path in (*MEMBER, *ADMIN):
        check(mira, path)
        if path in PICTURES:
            name = f"{path.strip('/').replace('/', '-')}-{width}-{theme}.png"
            mira.page.screenshot(path=SCREENSHOTS / name)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_every_page_of_a_member_in_every_look(visit: Visit, database: Database, width: int, theme: str) -> None:
    """Without anything on the pages, and then with."""
    ada = visit("member", 100_000, viewport={"width": width, "height": 900}, color_scheme=theme)
    ada.sign_in()
    for path in MEMBER:
        check(ada, path)
    furnish(database, ada)
    check_things(ada, database)
    check_workbench(ada)
    for path in MEMBER:
        check(ada, path)
    for path in ADMIN:
        answer = ada.page.goto(ada.url + path)
        assert answer
        assert answer.status in (403, 404), path
        look(ada.page, path)
