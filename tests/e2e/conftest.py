"""Debian's Chromium, driven by Playwright, in front of the run's Strata."""
from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from frontend.accounts.audit import SYSTEM
from frontend.accounts.keys import random_text
from frontend.accounts.service import create_account
from frontend.budgets.grants import give_grant
from frontend.db import Database
from frontend.db.records import Account
from tests.stack import Stack

PASSWORD = "correct horse"
#: It looks up nobody and updates nothing. Root has no sandbox.
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
              "--disable-component-update", "--disable-sync"]
#: Milliseconds for anything to appear on a page, on a busy machine.
PATIENCE = 60_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for a file of tests. While it is there an event loop runs, beside which others can't have theirs."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("continuous integration tests the App in Chromium, and there is none: apt-get install chromium")
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def database(stack: Stack) -> Iterator[Database]:
    """The stack's own database."""
    database = Database(f"sqlite:///{stack.home / 'strata.db'}")
    yield database
    database.close()


@dataclass
class Visitor:
    """Somebody with a browser of their own."""

    account: Account
    context: BrowserContext
    page: Page
    url: str

    def open(self, path: str) -> None:
        """Open a page, which must be there."""
        answer = self.page.goto(self.url + path)
        assert answer
        assert answer.status == 200, (path, answer.status)

    def sign_in(self) -> None:
        """Sign in by the form."""
        self.open("/sign-in")
        self.page.get_by_label("Email").fill(self.account.email)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/usage")


@pytest.fixture
def visit(chromium: Browser, database: Database, stack: Stack) -> Iterator[Callable[..., Visitor]]:
    """Makes people, each with a browser of their own. Whatever a page complains about in the console is a failure."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # A 4xx that a test provokes is a line in the console too.
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def make(role: str = "member", tokens: int = 0, **options: object) -> Visitor:
        account = create_account(database, SYSTEM, f"{random_text(8).lower()}@example.org", role, PASSWORD)
        if tokens:
            give_grant(database, SYSTEM, account.id, tokens, "for tests")
        context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"], **options)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return Visitor(account, context, page, stack.url)

    yield make
    for context in contexts:
        context.close()
    assert complaints == []
