"""A stream that waits for its model: a comment every 15 seconds keeps its connection open."""
from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from frontend.accounts.api_keys import create_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.api import completions
from frontend.app import create_app
from frontend.budgets.grants import give_grant
from frontend.db import Database
from frontend.settings import Settings
from tests.paid import PATH, body
from tests.small_triton import SmallTriton
from tests.valkey import Valkey


@pytest.fixture
def stream(settings: Settings, database: Database, valkey: Valkey, triton: SmallTriton) -> Iterator[Iterator[str]]:
    """The lines of a stream that waits for a Cold model, which nobody loads."""
    triton.states.pop("tiny-llama_engine")
    account = create_account(database, SYSTEM, "ada@example.org")
    give_grant(database, SYSTEM, account.id, 1000, "for tests")
    _, key = create_key(database, SYSTEM, account, "tests")
    app = create_app(replace(settings, redis_url=valkey.url, triton_urls=(triton.address,), load_timeout_seconds=60))
    answer = app.test_client().post(PATH, json=body(stream=True), headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200
    yield (line for part in answer.iter_encoded() for line in part.decode().split("\n") if line)
    answer.close()


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same thirty times as fast."""
    assert (completions.MOMENT, completions.COMMENT_EVERY) == (10.0, 15.0)
    monkeypatch.setattr(completions, "MOMENT", 0.3)
    monkeypatch.setattr(completions, "COMMENT_EVERY", 0.5)


def test_comments_come_until_the_model_is_warm(stream: Iterator[str], triton: SmallTriton) -> None:
    began = time.monotonic()
    comments = [next(stream) for _ in range(4)]
    assert time.monotonic() - began >= 3 * completions.COMMENT_EVERY
    assert set(comments) == {": waiting for tiny-llama to become Warm"}
    triton.states["tiny-llama_engine"] = "READY"
    rest = [line for line in stream if not line.startswith(":")]
    assert len(rest) == 9
    assert rest[-1] == "data: [DONE]"
