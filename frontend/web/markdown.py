"""Turns the documentation's Markdown into HTML: headings to link to, and code to read and to copy."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name


@dataclass(frozen=True)
class Page:
    """A rendered text: its title, its first paragraph, and its headings of the second level with their anchors."""

    title: str
    lead: str
    html: Markup
    headings: tuple[tuple[str, str], ...]


def render(text: str) -> Page:
    """Render a page, whose first line is its title. Markup in the text stays text."""
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _code}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="table" tabindex="0"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    parser.add_render_rule("fence", _fence)
    tokens = parser.parse(text)
    headings: list[tuple[str, str]] = []
    title = lead = ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            words = _words(tokens[place + 1])
            token.attrSet("id", slug(words))
            if token.tag == "h1":
                title = words
            elif token.tag == "h2":
                headings.append((slug(words), words))
        elif token.type == "paragraph_open" and not lead:
            lead = _words(tokens[place + 1])
    html = parser.renderer.render(tokens, parser.options, {})
    return Page(title, lead, Markup(html), tuple(headings))  # html is off, so the parser escapes the text


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _words(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _fence(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    token = tokens[place]
    language = token.info.split()[0] if token.info else ""
    if language in ("", "text"):
        return f'<pre class="output" tabindex="0"><code>{escape(token.content)}</code></pre>\n'
    return (f'<div class="code" data-copy><pre class="{escape(language)}" tabindex="0"><code>'
            f"{_code(token.content, language, '')}</code></pre></div>\n")


def _code(code: str, language: str, _: str) -> str:
    return str(highlight(code, get_lexer_by_name(language), HtmlFormatter(nowrap=True)))
