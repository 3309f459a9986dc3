"""A member and an admin walk the App in a real browser, from the first sign-in to a Job."""
from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable

import openai
import orjson
import pytest
from playwright.sync_api import Page, expect

from frontend.db import Database
from frontend.db import saved_requests as rows
from tests.e2e.conftest import PATIENCE, Visitor
from tests.stack import Stack

Visit = Callable[..., Visitor]
MODEL, PROMPT = "smollm2-135m", "The capital of France is"
expect.set_options(timeout=PATIENCE)


def new_key(visitor: Visitor, name: str) -> str:
    """Make a key on the page, and copy it."""
    visitor.open("/keys")
    visitor.page.get_by_label("Name").fill(name)
    visitor.page.get_by_role("button", name="Create the key").click()
    visitor.page.get_by_role("button", name="Copy").click()
    expect(visitor.page.get_by_role("button", name="Copied")).to_be_visible()
    return str(visitor.page.evaluate("navigator.clipboard.readText()"))


def test_a_key_from_its_making_to_its_end(visit: Visit, stack: Stack) -> None:
    ada = visit(tokens=1000)
    ada.sign_in()
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=new_key(ada, "laptop"), max_retries=0)
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2, temperature=0)
    assert answer.choices[0].text.startswith(" Paris")
    ada.open("/usage")
    expect(ada.page.get_by_role("cell", name="laptop")).to_be_visible()
    ada.open("/keys")
    ada.page.get_by_label("Actions for the key laptop").click()
    ada.page.get_by_role("link", name="Revoke").click()
    ada.page.get_by_role("button", name="Revoke the key").click()
    expect(ada.page.get_by_text("You have no key yet.")).to_be_visible()
    with pytest.raises(openai.AuthenticationError):
        client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)


def test_tokens_are_asked_for_approved_and_seen(visit: Visit) -> None:
    ada, mira = visit(), visit("admin")
    ada.sign_in()
    ada.page.get_by_role("link", name="Request more tokens").click()
    ada.page.get_by_label("Tokens").fill("20,000")
    ada.page.get_by_label("What for").fill("To see what a Base model does.")
    ada.page.get_by_role("button", name="Send the request").click()
    expect(ada.page.get_by_text("Sent on")).to_be_visible()
    mira.sign_in()
    mira.page.get_by_role("link", name="Requests").click()
    card = mira.page.get_by_role("listitem").filter(has_text=ada.account.email)
    card.get_by_label("Tokens").fill("15000")
    card.get_by_label("Note").fill("Enough for a start.")
    card.get_by_role("button", name="Approve").click()
    expect(mira.page.get_by_role("cell", name=ada.account.email)).to_be_visible()
    ada.page.reload()
    expect(ada.page.get_by_text("with a Grant of 15,000 tokens")).to_be_visible()
    expect(ada.page.get_by_text("Enough for a start.")).to_be_visible()
    ada.open("/usage")
    expect(ada.page.get_by_text("15,000 tokens available.")).to_be_visible()


def test_an_admin_invites_somebody_who_then_is_in(visit: Visit) -> None:
    mira, anybody = visit("admin"), visit()
    mira.sign_in()
    mira.page.get_by_role("link", name="People").click()
    mira.page.get_by_label("Invite").fill("new@example.org")
    mira.page.get_by_role("button", name="Make the link").click()
    link = mira.page.locator(".secret code").inner_text()
    anybody.page.goto(link)
    anybody.page.get_by_label("Password").fill("another horse")
    anybody.page.get_by_role("button", name="Save and sign in").click()
    expect(anybody.page.get_by_role("heading", name="Quickstart")).to_be_visible()
    anybody.open("/account")
    expect(anybody.page.get_by_text("this one")).to_be_visible()


def test_the_workbench_draws_what_the_model_does(visit: Visit) -> None:
    ada = visit(tokens=5000)
    ada.sign_in()
    ada.page.get_by_role("link", name="Workbench").click()
    page = ada.page
    fields = {"max_tokens": "4", "temperature": "0.9", "n": "2", "seed": "5", "prompt_logprobs": "3"}
    for field, value in fields.items():
        page.locator(f"[name={field}]").fill(value)
    page.locator("[name=prompt]").fill(f"{PROMPT} Paris")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("8 completion tokens")).to_be_visible()
    expect(page.locator(".choice")).to_have_count(2)
    expect(page.locator(".choice .tok")).to_have_count(8)
    page.locator(".choice .tok").first.hover()
    assert page.locator("#tip tr").count() >= 5
    assert "%" in page.locator("#tip").inner_text()
    page.get_by_role("tab", name="Prompt").click()
    expect(page.locator("#prompt-tokens .tok")).to_have_count(5)
    paris = page.locator("#prompt-tokens .tok").last
    assert "Paris" in paris.inner_text()
    assert float(paris.evaluate("drawn => drawn.style.getPropertyValue('--p')")) > 0.1

    page.get_by_role("tab", name="Layers").click()
    page.get_by_role("button", name="None").click()
    for layer in (0, 15, 29):
        page.get_by_label(f"Layer {layer}", exact=True).check(force=True)
    page.locator("[name=prompt]").fill(PROMPT)
    page.get_by_role("button", name="Look inside").click()
    tables = page.locator("#lens table")
    expect(tables).to_have_count(2)
    expect(tables.nth(0).locator("tbody tr")).to_have_count(3)
    expect(tables.nth(0).locator("td")).to_have_count(15)
    top = tables.nth(1).locator("tbody tr").first
    assert top.locator("th").inner_text() == "29", "the last Layer is at the top"
    assert top.locator("td").last.inner_text().strip() == "Paris", "and says what the model says"
    norms = [float(text) for text in tables.nth(0).locator("tbody tr").last.locator("td").all_inner_texts()]
    assert all(norm > 0 for norm in norms)


def test_its_code_repeats_the_request(visit: Visit, stack: Stack) -> None:
    ada = visit(tokens=5000)
    ada.sign_in()
    key = new_key(ada, "code")
    ada.open("/workbench")
    page = ada.page
    for field, value in (("max_tokens", "6"), ("seed", "11"), ("top_k", "30"), ("stop", "never\\nthis")):
        if field == "stop":
            page.get_by_text("Where it stops").click()
        page.locator(f"[name={field}]").fill(value)
    page.locator("[name=prompt]").fill("It's \"here\":\n")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("6 completion tokens")).to_be_visible()
    written = "".join(page.locator(".choice .tok").all_inner_texts()).replace("⏎\n", "\n").replace("∅", "")
    page.get_by_role("tab", name="Show code").click()
    python, curl = (page.locator(f"#code-{kind}").inner_text() for kind in ("python", "curl"))
    environment = {**os.environ, "OPENAI_API_KEY": key}
    said = subprocess.run(["bash", "-c", curl], env=environment, capture_output=True, text=True, check=True).stdout
    assert f'"text":{openai_json(written)}' in said
    assert "extra_body={\"top_k\": 30}" in python
    assert f'base_url="{stack.url}/v1"' in python
    printed: list[str] = []
    os.environ["OPENAI_API_KEY"] = key
    try:
        exec(python, {"print": printed.append})
    finally:
        del os.environ["OPENAI_API_KEY"]
    assert printed == [written]


def openai_json(text: str) -> str:
    """A text as the API writes it."""
    return orjson.dumps(text).decode()


def test_a_request_is_kept_only_when_it_is_saved(visit: Visit, database: Database) -> None:
    ada = visit(tokens=100)
    ada.sign_in()
    ada.open("/workbench")
    ada.page.locator("[name=prompt]").fill("A <b>prompt</b> & more")
    ada.page.locator("[name=seed]").fill("9007199254740993")
    with database.read() as connection:
        assert rows.count(connection, ada.account.id) == 0
    name = '"><img src=x onerror=alert(1)>'
    ada.page.get_by_label("Name").fill(name)
    ada.page.get_by_role("button", name="Save the request").click()
    ada.page.wait_for_url(re.compile(r"saved="))
    expect(ada.page.get_by_role("link", name=name)).to_be_visible()
    assert ada.page.locator("[name=prompt]").input_value() == "A <b>prompt</b> & more"
    assert ada.page.locator("[name=seed]").input_value() == "9007199254740993"
    ada.page.get_by_role("tab", name="Show code").click()
    expect(ada.page.locator("#code-curl")).to_contain_text('"seed":9007199254740993')
    eve = visit()
    eve.sign_in()
    saved = ada.page.url.partition("saved=")[2]
    answer = eve.page.goto(f"{eve.url}/workbench?saved={saved}")
    assert answer
    assert answer.status == 404
    ada.page.get_by_role("button", name=f"Forget {name}").click()
    expect(ada.page.get_by_role("link", name=name)).to_have_count(0)


def start_job(visitor: Visitor, key: str, requests: int, max_tokens: int) -> str:
    """Start a Job by the API."""
    client = openai.OpenAI(base_url=f"{visitor.url}/v1", api_key=key, max_retries=0)
    body = {"name": "<i>a walk</i>", "model": MODEL, "prompts": [f"{number} and" for number in range(requests)],
            "params": {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}}
    job: dict[str, str] = client.post("/jobs", body=body, cast_to=object)  # type: ignore[assignment]
    return job["id"]


def test_a_job_moves_by_itself_and_is_cancelled(visit: Visit) -> None:
    ada, eve = visit(tokens=2_000_000), visit()
    ada.sign_in()
    job_id = start_job(ada, new_key(ada, "jobs"), 400, 8)
    ada.page.get_by_role("link", name="Jobs", exact=True).click()
    bar = ada.page.get_by_role("progressbar")
    expect(bar).to_be_visible()
    expect(bar).not_to_have_js_property("value", 0)
    ada.page.get_by_role("link", name="<i>a walk</i>").click()
    eve.sign_in()
    for path in ("", "/progress", "/results.jsonl", "/erase"):
        answer = eve.context.request.get(f"{eve.url}/jobs/{job_id}{path}")
        assert answer.status == 404, path
    ada.page.get_by_role("button", name="Cancel the Job").click()
    expect(ada.page.get_by_text("cancelled", exact=True)).to_be_visible()
    with ada.page.expect_download() as download:
        ada.page.get_by_role("link", name="Results so far").click()
    with open(download.value.path()) as file:
        assert '"response"' in file.readline()
    ada.page.get_by_role("link", name="Erase").click()
    ada.page.get_by_role("button", name="Erase the Job").click()
    expect(ada.page.get_by_text("No Jobs yet.")).to_be_visible()


def test_everything_but_the_workbench_works_without_javascript(visit: Visit) -> None:
    ada = visit(tokens=100, java_script_enabled=False)
    ada.sign_in()
    page: Page = ada.page
    ada.open("/keys")
    page.get_by_label("Name").fill("plain")
    page.get_by_role("button", name="Create the key").click()
    assert page.locator(".secret code").inner_text().startswith("strata-")
    ada.open("/keys")
    page.get_by_label("Actions for the key plain").click()
    page.get_by_role("link", name="Revoke").click()
    page.get_by_role("button", name="Revoke the key").click()
    expect(page.get_by_text("You have no key yet.")).to_be_visible()
    for path in ("/usage", "/jobs", "/models", "/account", "/docs/quickstart"):
        ada.open(path)
    ada.open("/workbench")
    assert "The Workbench needs JavaScript." in page.content()  # a browser shows it that has none by itself
    page.get_by_role("button", name="Sign out").first.click()
    expect(page.get_by_role("link", name="Sign in").first).to_be_visible()
