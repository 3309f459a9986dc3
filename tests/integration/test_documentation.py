"""Each code block of the documentation runs as it stands, page by page, and prints what stands below it."""
from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from frontend.web.docs import FOLDER, PAGES
from tests.stack import REPOSITORY, Stack

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = [name for group in PAGES.values() for name in group]
#: How far a number may be from the recorded one: batches move the last digits, and another processor's do too.
NEAR = 0.05


def blocks(name: str) -> list[tuple[str, str]]:
    """The code blocks of a page: their language and their text."""
    return _BLOCK.findall((FOLDER / f"{name}.md").read_text())


def run(language: str, code: str, stack: Stack, folder: Path) -> str:
    """Run a block in a folder; what it prints."""
    for written, here in (("127.0.0.1:8080", f"127.0.0.1:{stack.port}"), ("127.0.0.1:8001", stack.grpc)):
        code = code.replace(written, here)
    printed = io.StringIO()
    if language == "python":
        with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
            exec(compile(code, "documentation", "exec"), {"__name__": "documentation"})
        return printed.getvalue()
    tools = (f'strata() {{ {shlex.quote(sys.executable)} -m frontend "$@"; }}\n'
             f'make() {{ command make -C {shlex.quote(str(REPOSITORY))} "$@"; }}\n')
    environment = {**os.environ, "STRATA_HOME": str(stack.home), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-euc", tools + code], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def matches(recorded: str, printed: str) -> bool:
    """Whether an output is the recorded one: … stands for anything, and numbers may differ a little."""
    numbers = re.compile(r"-?\d+\.\d+")
    pattern = re.sub(r"(?:\\-)?\d+\\\.\d+|…", lambda found: ".*?" if found[0] == "…" else r"(-?\d+\.\d+)",
                     re.escape(recorded.strip()))
    found = re.fullmatch(pattern, printed.strip(), re.DOTALL)
    return bool(found) and all(abs(float(one) - float(other)) < NEAR
                               for one, other in zip(numbers.findall(recorded), found.groups(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_does_what_it_says(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{stack.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", stack.key)
    printed = ""
    for language, text in blocks(name):
        if language == "text":
            assert matches(text, printed), f"printed:\n{printed}\nrecorded:\n{text}"
        else:
            assert language in ("python", "bash"), "a block that nobody runs"
            printed = run(language, text, stack, tmp_path)
            assert printed or text.startswith("export"), "a block that shows nothing"


def test_the_comparison_compares() -> None:
    assert matches("a 1.50 b", "a 1.52 b\n")
    assert not matches("a 1.50 b", "a 1.60 b")
    assert not matches("a 1.50 b", "a 1.50 c")
    assert matches("a … c", "a b c")
