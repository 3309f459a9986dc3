"""The App with no Triton behind it, people with passwords, and browsers that send forms as real ones do."""
from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from html import unescape
from pathlib import Path
from shutil import copy

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from frontend.accounts.audit import SYSTEM
from frontend.accounts.keys import random_text
from frontend.accounts.passwords import hash_password
from frontend.accounts.service import create_account
from frontend.accounts.sessions import LIFE
from frontend.app import create_app
from frontend.db import Database
from frontend.db import accounts as rows
from frontend.db import sessions as session_rows
from frontend.db.migrate import migrate
from frontend.db.records import Account, Session
from frontend.settings import Settings
from tests.valkey import Valkey

PASSWORD = "correct horse"
_TOKEN = re.compile(r'name="form_token" value="(\w+)"')


class Browser:
    """A browser without JavaScript: it keeps cookies, and sends forms with the token of the page that it saw last."""

    def __init__(self, app: Flask) -> None:
        self.client: FlaskClient = app.test_client()
        self.page = ""

    def get(self, path: str, **headers: str) -> TestResponse:
        """Open a page."""
        answer = self.client.get(path, headers={"Accept": "text/html", **headers})
        self.page = answer.text
        return answer

    def post(self, path: str, with_token: bool = True, **fields: object) -> TestResponse:
        """Send a form."""
        if with_token:
            fields["form_token"] = self.token
        answer = self.client.post(path, data=fields, headers={"Accept": "text/html"})
        self.page = answer.text
        return answer

    @property
    def token(self) -> str:
        """The token of the page."""
        found = _TOKEN.search(self.page)
        assert found, "the page has no form"
        return found[1]

    @property
    def words(self) -> str:
        """What the page says, without markup."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.page)).split())

    def sign_in(self, email: str, password: str = PASSWORD, **fields: str) -> TestResponse:
        """Sign in."""
        self.get("/sign-in")
        return self.post("/sign-in", email=email, password=password, **fields)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that is up to date and empty, to be copied."""
    file = tmp_path_factory.mktemp("migrated") / "strata.db"
    database = Database(f"sqlite:///{file}")
    migrate(database)
    database.close()
    return file


@pytest.fixture
def database_url(tmp_path: Path, migrated: Path) -> str:
    copy(migrated, tmp_path / "strata.db")
    return f"sqlite:///{tmp_path / 'strata.db'}"


@pytest.fixture
def redis_url(valkey: Valkey) -> str:
    valkey.client.flushall()  # attempts of other tests count no more
    return valkey.url


@pytest.fixture
def app(settings: Settings, database: Database) -> Flask:
    return create_app(settings)


@pytest.fixture
def browser(app: Flask) -> Browser:
    return Browser(app)


@cache
def _hash() -> str:
    return hash_password(PASSWORD)


@pytest.fixture
def person(database: Database) -> Callable[..., Account]:
    def make(email: str, role: str = "member") -> Account:
        """Somebody with the password."""
        account = create_account(database, SYSTEM, email, role)
        with database.write() as connection:
            changed = rows.set_password(connection, account.id, _hash())
        assert changed
        return changed

    return make


@pytest.fixture
def ada(person: Callable[..., Account]) -> Account:
    return person("ada@example.org")


@pytest.fixture
def mira(person: Callable[..., Account]) -> Account:
    return person("mira@example.org", "admin")


@pytest.fixture
def signed_in(app: Flask, database: Database) -> Callable[[Account], Browser]:
    def make(account: Account) -> Browser:
        """A browser of a person's who signed in before: without the password, which takes long to check on purpose."""
        browser, now, secret = Browser(app), datetime.now(UTC), random_text(43)
        session = Session(f"sess_{random_text(20)}", account.id, now, now, now + LIFE, "127.0.0.1", "tests")
        with database.write() as connection:
            session_rows.add_session(connection, session, hashlib.sha256(secret.encode()).hexdigest())
        browser.client.set_cookie("strata_session", secret)
        return browser

    return make
