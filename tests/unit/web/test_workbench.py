"""The Workbench sends the API's own requests for the person who is signed in, and keeps nothing that was not saved."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from flask import Flask

from frontend.accounts.audit import SYSTEM, list_events
from frontend.api.parts import EXTENSION
from frontend.app import create_app
from frontend.budgets.grants import give_grant
from frontend.budgets.usage import export_usage
from frontend.db import Database
from frontend.db import saved_requests as rows
from frontend.db.records import Account
from frontend.settings import Settings
from frontend.warmth.policies import changes
from tests.small_triton import SmallTriton
from tests.unit.web.conftest import Browser

BODY = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 3, "seed": 2**62 + 1}


@pytest.fixture(scope="module")
def triton() -> Iterator[SmallTriton]:
    """A Triton of the protocol alone, whose model is Warm."""
    running = SmallTriton(["tiny-llama"])
    running.states["tiny-llama_engine"] = "READY"
    yield running
    running.kill()


@pytest.fixture
def app(settings: Settings, database: Database, triton: SmallTriton) -> Flask:
    return create_app(replace(settings, triton_urls=(triton.address,), request_timeout_seconds=60))


def run(browser: Browser, body: dict[str, object], **headers: str) -> tuple[int, str]:
    """Run a request as the page's script does."""
    browser.get("/workbench")
    answer = browser.client.post("/workbench/completions", json=body,
                                 headers={"X-Form-Token": browser.token, **headers})
    return answer.status_code, answer.text


def test_it_runs_and_charges_like_the_api(
    signed_in: Callable[[Account], Browser], database: Database, ada: Account
) -> None:
    browser = signed_in(ada)
    status, text = run(browser, BODY)
    assert (status, json.loads(text)["error"]["code"]) == (429, "budget_exceeded")
    give_grant(database, SYSTEM, ada.id, 100, "a start")
    status, text = run(browser, BODY)
    assert status == 200
    assert json.loads(text)["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    status, text = run(browser, {**BODY, "stream": True})
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    records = list(export_usage(database, ada.id))
    assert [(record.charged, record.route) for record in records] == [(13, "/workbench/completions")] * 2
    browser.get("/usage")
    assert "Workbench tiny-llama 2 20 6 26" in browser.words


def test_it_is_as_strict_as_the_api_and_answers_in_its_shape(
    signed_in: Callable[[Account], Browser], ada: Account
) -> None:
    browser = signed_in(ada)
    for body, param in (({**BODY, "temprature": 1}, "temprature"), ({**BODY, "seed": "1"}, "seed")):
        status, text = run(browser, body)
        assert (status, json.loads(text)["error"]["param"]) == (400, param)
    assert run(browser, BODY, **{"X-Form-Token": "wrong"})[0] == 403
    browser.client.delete_cookie("strata_session")
    assert browser.client.post("/workbench/completions", json=BODY).status_code == 403


def test_who_is_not_signed_in_any_more_is_led_to_where_people_sign_in(browser: Browser) -> None:
    browser.get("/sign-in")
    for path, body in (("/workbench/completions", BODY),
                       ("/workbench/lens", {"model": "tiny-llama", "prompt": "x", "layers": [1]})):
        answer = browser.client.post(path, json=body, headers={"X-Form-Token": browser.token})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in?next=/"), path


def test_a_request_is_saved_shown_and_forgotten_by_its_person_only(
    signed_in: Callable[[Account], Browser], person: Callable[..., Account], database: Database, ada: Account
) -> None:
    hers, theirs = signed_in(ada), signed_in(person("eve@example.org"))
    hers.get("/workbench")
    answer = hers.post("/workbench/saved", name="</script><b>mine</b>", body=json.dumps(BODY))
    assert answer.status_code == 303
    with database.read() as connection:
        (saved_id,) = rows.names_of(connection, ada.id)
        saved = rows.saved(connection, ada.id, saved_id)
    assert saved
    assert json.loads(saved.body) == BODY
    hers.get(answer.headers["Location"])
    assert "<b>mine" not in hers.page
    assert '"seed": "4611686018427387905"' in hers.page.replace("&#34;", '"'), "as a text: JavaScript would round it"
    assert theirs.get(answer.headers["Location"]).status_code == 404
    theirs.get("/workbench")
    assert "mine" not in theirs.words
    assert theirs.post(f"/workbench/saved/{saved.id}/forget").status_code == 404
    hers.get("/workbench")
    assert hers.post("/workbench/saved", name="bad", body='{"model": 1}').status_code == 400
    hers.get("/workbench")
    hers.post(f"/workbench/saved/{saved.id}/forget")
    with database.read() as connection:
        assert rows.names_of(connection, ada.id) == {}
    noted = [event for event in list_events(database, actor=ada.id) if event.subject == saved.id]
    assert [(event.action, event.account_id, event.details) for event in noted] == [
        ("saved_request:add", ada.id, {}), ("saved_request:forget", ada.id, {})]


def test_models_say_their_facts_and_states(
    signed_in: Callable[[Account], Browser], triton: SmallTriton, ada: Account
) -> None:
    browser = signed_in(ada)
    browser.get("/models")
    for fact in ("tiny-llama Warm", "2,048 tokens", "Layers 4", "Hidden size 64", "128,256", "<|begin_of_text|>"):
        assert fact in browser.words, fact
    triton.states["tiny-llama_engine"] = "LOADING"
    browser.get("/models/states")
    triton.states["tiny-llama_engine"] = "READY"
    assert "loading" in browser.words


def test_an_admin_changes_policies_and_wishes(
    app: Flask, signed_in: Callable[[Account], Browser], mira: Account, triton: SmallTriton
) -> None:
    parts = app.extensions[EXTENSION]
    admin = signed_in(mira)
    fields = {"warm": "on_demand", "idle_minutes": "45", "windows": "Mon-Fri 08:00-18:00 Europe/Berlin"}
    changed = ({**fields, "windows": "sometimes"}, 400), ({**fields, "idle_minutes": "0"}, 400), (fields, 303)
    for change, status in changed:
        admin.get("/admin/models")
        assert admin.post("/admin/models/tiny-llama/policy", **change).status_code == status
    assert changes(parts.database)["tiny-llama"].idle_minutes == 45
    admin.get("/admin/models")
    admin.post("/admin/models/tiny-llama/policy", **fields, reset="yes")
    assert changes(parts.database) == {}
    admin.get("/admin/models")
    assert admin.post("/admin/models/tiny-llama/wish", wish="unload").status_code == 400  # the catalog's is always
    assert "Its policy keeps tiny-llama Warm now" in admin.words
    assert parts.records.asked() == {}
    admin.post("/admin/models/tiny-llama/policy", warm="on_demand", idle_minutes="30", windows="")
    admin.get("/admin/models")
    assert admin.post("/admin/models/tiny-llama/wish", wish="unload").status_code == 303
    assert parts.records.asked() == {"tiny-llama": "unload"}
    admin.get("/admin/models")
    admin.post("/admin/tritons/drain", triton=triton.address, to="drained")
    assert parts.records.drained() == {triton.address}
    admin.get("/admin/models")
    assert "drained" in admin.words
    assert admin.post("/admin/tritons/drain", triton="127.0.0.1:1", to="drained").status_code == 404
