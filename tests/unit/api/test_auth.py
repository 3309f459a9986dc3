"""A request needs a good key; a bad one is answered alike, whatever is wrong with it."""
from __future__ import annotations

from datetime import timedelta

import pytest
from flask import Flask
from flask.testing import FlaskClient

from frontend.accounts.api_keys import create_key, revoke_key, rotate_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.keys import new_key
from frontend.accounts.service import create_account, set_disabled
from frontend.db import Database

GUARDED = [
    ("GET", "/v1/models", None), ("GET", "/v1/models/tiny-llama", None),
    ("POST", "/v1/completions", {"model": "m", "prompt": "x"}), ("POST", "/v1/tokenize", {"model": "m", "prompt": "x"}),
    ("POST", "/v1/detokenize", {"model": "m", "tokens": [1]}),
]


@pytest.fixture
def bad_keys(database: Database, key: str) -> dict[str, str | None]:
    account = create_account(database, SYSTEM, "eve@example.org")
    revoked, revoked_secret = create_key(database, SYSTEM, account, "revoked")
    revoke_key(database, SYSTEM, revoked.id)
    rotated, expired = create_key(database, SYSTEM, account, "expired")
    rotate_key(database, SYSTEM, rotated.id, overlap=timedelta(0))
    disabled = create_account(database, SYSTEM, "mallory@example.org")
    _, of_disabled = create_key(database, SYSTEM, disabled, "disabled")
    set_disabled(database, SYSTEM, disabled, True)
    return {
        "missing": None, "empty": "", "no scheme": key, "another scheme": f"Basic {key}", "no key": "Bearer",
        "malformed": "Bearer strata-x", "unknown": f"Bearer {new_key().secret}", "mistyped": f"Bearer {key[:-1]}",
        "of another case": f"Bearer {key.swapcase()}", "revoked": f"Bearer {revoked_secret}",
        "expired": f"Bearer {expired}", "of a disabled account": f"Bearer {of_disabled}",
        "two": f"Bearer {key} {key}", "not ASCII": "Bearer strata-é",
    }


@pytest.mark.parametrize(("method", "path", "body"), GUARDED)
def test_all_bad_keys_get_the_same_answer(
    anonymous: FlaskClient, bad_keys: dict[str, str | None], method: str, path: str, body: object
) -> None:
    answers = set()
    for header in bad_keys.values():
        headers = {} if header is None else {"Authorization": header}
        answer = anonymous.open(path, method=method, json=body, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.get_json()["error"]["code"] == "invalid_api_key"
        answers.add(answer.data)
    assert len(answers) == 1


def test_a_good_key_gets_past(client: FlaskClient) -> None:
    assert client.get("/v1/models").status_code == 503  # and fails only because no Triton runs here


def test_the_scheme_is_of_any_case(app: Flask, key: str) -> None:
    for scheme in ("bearer", "BEARER"):
        assert app.test_client().get("/v1/models", headers={"Authorization": f"{scheme} {key}"}).status_code == 503


def test_revoking_counts_from_the_next_request_on(app: Flask, database: Database) -> None:
    key, secret = create_key(database, SYSTEM, create_account(database, SYSTEM, "grace@example.org"), "short")
    headers = {"Authorization": f"Bearer {secret}"}
    assert app.test_client().get("/v1/models", headers=headers).status_code == 503
    revoke_key(database, SYSTEM, key.id)
    assert app.test_client().get("/v1/models", headers=headers).status_code == 401


def test_a_key_without_the_scope_is_refused_with_403(app: Flask, database: Database) -> None:
    account = create_account(database, SYSTEM, "alan@example.org")
    _, secret = create_key(database, SYSTEM, account, "usage only", frozenset({"usage:read"}))
    headers = {"Authorization": f"Bearer {secret}"}
    for method, path, body in GUARDED:
        answer = app.test_client().open(path, method=method, json=body, headers=headers)
        if method == "GET":
            assert answer.status_code == 503
        else:
            error = answer.get_json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (403, "permission_error", "missing_scope")


def test_keys_are_in_no_log(capsys: pytest.CaptureFixture[str], app: Flask, key: str) -> None:
    app.test_client().get("/v1/models", headers={"Authorization": f"Bearer {key}"}, buffered=True).close()
    logged = capsys.readouterr().err
    assert '"route":"/v1/models"' in logged
    assert "key_id" in logged
    assert key not in logged
    assert key[13:] not in logged
