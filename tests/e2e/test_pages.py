"""Every page: no serious violation for axe-core, light enough, nothing wider than the screen, no request elsewhere."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Request, Response

from frontend.accounts.api_keys import create_key
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


def check(visitor: Visitor, path: str, accessible: bool = True) -> None:
    """Look at one page with an empty cache."""
    session = visitor.context.new_cdp_session(visitor.page)
    session.send("Network.clearBrowserCache")
    page = visitor.page
    weight = Weight(page, visitor.url)
    page.goto(visitor.url + path, wait_until="load")
    assert 1000 < weight.bytes < MOST_BYTES, path
    assert weight.elsewhere == [], path
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    if accessible:
        found = Axe().run(page).response["violations"]
        serious = [(one["id"], [node["target"] for node in one["nodes"]]) for one in found
                   if one["impact"] in ("serious", "critical")]
        assert serious == [], path


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


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "dark"), (375, "light"), (1440, "light"), (375, "dark")])
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
