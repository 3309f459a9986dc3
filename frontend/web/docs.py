"""The documentation at /docs, and /llms.txt for programs that read it: the Markdown files of the folder `docs`."""
from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flask import Blueprint, Response, make_response, redirect, render_template, send_from_directory

from frontend.api.parts import parts
from frontend.errors import NotFound
from frontend.web.markdown import Page, render

bp = Blueprint("docs", __name__)
FOLDER = Path(__file__).resolve().parents[2] / "docs"
#: The pages, in the order in which they are read.
PAGES = {
    "Begin": ("quickstart", "base-models", "sample-continuations"),
    "Completions": ("completions", "strict-validation", "token-probabilities", "whole-vocabulary", "activations",
                    "same-tokens-again"),
    "Jobs": ("jobs",),
    "Your account": ("your-tokens", "handle-429", "api-keys"),
    "The service": ("warm-and-cold", "triton-clients", "run-your-own"),
    "Answers": ("faq",),
}
#: What the texts write for the address of the service that shows them.
_ADDRESS = "http://127.0.0.1:8080"


@dataclass(frozen=True)
class Entry:
    """A page in the list of all."""

    name: str
    title: str


@bp.get("/docs")
def first() -> Response:
    """The first page."""
    return make_response(redirect("/docs/quickstart", 303))


@bp.get("/docs/<name>")
def show(name: str) -> Response:
    """A page, or the text that it is made from where `.md` is added."""
    plain = name.removesuffix(".md")
    order = [entry for group in PAGES.values() for entry in group]
    if plain not in order:
        raise NotFound("There is no such page.")
    if plain != name:
        answer = Response(_text(plain, parts().settings.public_url), content_type="text/markdown; charset=utf-8")
    else:
        place = order.index(name)
        around = [_entry(order[other]) if 0 <= other < len(order) else None for other in (place - 1, place + 1)]
        answer = make_response(render_template(
            "docs.html", page=page(name, parts().settings.public_url), name=name, before=around[0], after=around[1],
            groups={title: [_entry(entry) for entry in names] for title, names in PAGES.items()}))
    answer.headers["Cache-Control"] = "private, no-cache"
    return answer


@bp.get("/docs/pictures/<name>.svg")
def picture(name: str) -> Response:
    """A picture of a page."""
    return send_from_directory(FOLDER, f"{name}.svg")


@bp.get("/llms.txt")
def llms() -> Response:
    """What there is to read, for language models (llmstxt.org)."""
    base = parts().settings.public_url
    lines = ["# Strata", "", "> The API for research on Llama Base models: OpenAI's completions, strict, with log "
             "probabilities down to the whole vocabulary and Activations at chosen Layers.", "",
             f"The API's contract is {base}/openapi.json.", ""]
    for title, names in PAGES.items():
        lines += [f"## {title}", ""]
        lines += [f"- [{page(name, base).title}]({base}/docs/{name}.md): {page(name, base).lead}" for name in names]
        lines += [""]
    return Response("\n".join(lines), content_type="text/plain; charset=utf-8")


@cache
def page(name: str, base: str) -> Page:
    """A page for a service at an address."""
    return render(_text(name, base))


def _entry(name: str) -> Entry:
    return Entry(name, page(name, parts().settings.public_url).title)


@cache
def _text(name: str, base: str) -> str:
    return (FOLDER / f"{name}.md").read_text().replace(_ADDRESS, base)
