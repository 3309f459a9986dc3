"""Nothing is undocumented, no link leads nowhere, and the questions of the service's first FAQ have their answers."""
from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from flask import Flask

from frontend.accounts.audit import Action
from frontend.api.openapi import describe
from frontend.cli import main
from frontend.errors import ApiError
from frontend.schemas.activations import ActivationsSchema
from frontend.schemas.completions import CompletionSchema, StreamOptionsSchema
from frontend.web import visitor
from frontend.web.docs import FOLDER, PAGES
from frontend.web.markdown import render
from tests.stack import REPOSITORY
from tests.unit.web.conftest import Browser

NAMES = [name for group in PAGES.values() for name in group]
TEXTS = {name: (FOLDER / f"{name}.md").read_text() for name in NAMES}
#: Shapes that OpenAI's documentation describes.
OPENAIS = {"File", "FileList", "BatchAnswer", "BatchError", "BatchErrors", "BatchList"}
#: The questions that the service has answered since it began.
QUESTIONS = (
    "Why does the model not answer my question?", "Why does my output differ from the output in the docs?",
    "How do I get the same text twice?", "Can I use the openai SDK?",
    "How do I send vLLM's fields from the openai SDK?", "How do I get the whole distribution over the vocabulary?",
    "Why does a misspelled field get an error?", "Why did my Completion stop before max_tokens?",
    "Why did I get a 429 error?", "How do I get more tokens?", "Why was my first request slow?",
    "What happens to my Job when my script stops?", "How do I revoke an API key?", "Can I share my API key?")


def codes(error: type[ApiError]) -> Iterator[str]:
    yield error.code
    for kind in error.__subclasses__():
        yield from codes(kind)


def commands(group: click.Group, path: str = "strata") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


@pytest.mark.parametrize("schema", [CompletionSchema, StreamOptionsSchema, ActivationsSchema])
def test_every_field_of_a_request_is_documented(schema: type[CompletionSchema]) -> None:
    text = TEXTS["completions"]
    assert [name for name in schema().load_fields if f"`{name}`" not in text] == []


def test_what_may_be_null_is_what_the_page_says() -> None:
    (line,) = re.findall(r"^- `null` means .*$", TEXTS["strict-validation"], re.MULTILINE)
    nullable = {name for name, field in CompletionSchema().load_fields.items() if field.allow_none}
    assert set(re.findall(r"`(\w+)`", line)) - {"null"} == nullable


def test_every_name_of_the_contract_is_documented() -> None:
    """Of bodies, of answers, of parameters and of headers."""
    code = re.findall(r"```.*?```|`[^`]+`", "\n".join(TEXTS.values()), re.DOTALL)
    words = {word.lower() for word in re.findall(r"[\w-]+", " ".join(code))}
    contract = describe(32_000)
    names = {(name, field) for name, schema in contract["components"]["schemas"].items() if name not in OPENAIS
             for field in schema.get("properties", {})}
    for path, operations in contract["paths"].items():
        for operation in operations.values():
            names |= {(path, given["name"]) for given in operation.get("parameters", ()) if given["in"] != "path"}
            names |= {(path, header) for answer in operation["responses"].values()
                      for header in answer.get("headers", ())}
    assert len(names) > 150
    assert sorted((where, name) for where, name in names if name.lower() not in words) == []


def test_every_error_code_is_documented() -> None:
    assert visitor.WrongForm
    assert sorted(code for code in set(codes(ApiError)) if f"| `{code}` |" not in TEXTS["completions"]) == []


def test_every_event_of_the_audit_log_is_documented() -> None:
    section = TEXTS["run-your-own"].partition("## The audit log\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+:\w+)`", section)) == set(Action)


def test_every_setting_is_documented() -> None:
    sources = [path.read_text() for room in ("frontend", "deploy") for path in (REPOSITORY / room).rglob("*.py")]
    settings = {name for source in sources for name in re.findall(r'"(STRATA_[A-Z_]*[A-Z])"', source)}
    assert len(settings) > 20
    assert sorted(name for name in settings if f"`{name}`" not in TEXTS["run-your-own"]) == []


def test_every_command_is_documented() -> None:
    known = list(commands(main))
    assert len(known) > 20
    assert [command for command in known if not re.search(rf"`{command}[ `]", TEXTS["run-your-own"])] == []


def test_every_route_of_the_api_is_documented(app: Flask) -> None:
    everything = "\n".join(TEXTS.values())
    for rule in app.url_map.iter_rules():
        if rule.rule.startswith("/v1/"):
            path = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: "{" + ("name" if found[1] == "name" else "id") + "}",
                          rule.rule)
            assert path in everything, path


def test_every_question_has_its_answer() -> None:
    for question in QUESTIONS:
        assert f"## {question}\n" in TEXTS["faq"]
        answer = TEXTS["faq"].partition(f"## {question}\n")[2].partition("\n## ")[0]
        assert "](/docs/" in answer, question


def test_every_page_is_served_and_no_link_leads_nowhere(browser: Browser) -> None:
    anchors = {name: set(re.findall(r'<h\d id="([^"]+)"', render(text).html)) for name, text in TEXTS.items()}
    for name in NAMES:
        assert browser.get(f"/docs/{name}").status_code == 200
        for page, anchor in re.findall(r'href="/docs/([\w-]*)(?:#([\w-]*))?"', browser.page):
            assert page in ("", *NAMES), (name, page)
            assert not anchor or anchor in anchors[page], (name, page, anchor)
        for anchor in re.findall(r'href="#([\w-]+)"', browser.page):
            assert anchor == "main" or anchor in anchors[name], (name, anchor)
        assert browser.get(f"/docs/{name}.md").text.startswith("# ")
    assert browser.get("/docs/nothing").status_code == 404


def test_programs_find_every_page(browser: Browser) -> None:
    text = browser.get("/llms.txt").text
    assert text.startswith("# Strata\n")
    assert [name for name in NAMES if f"(http://127.0.0.1:8080/docs/{name}.md)" not in text] == []


def test_markup_in_a_text_stays_text() -> None:
    html = render("# A <b>\n\n<script>alert(1)</script> [x](javascript:alert(1))\n\n```python\n'<i>'\n```\n").html
    assert "<script" not in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert "href=\"javascript" not in html
