"""The README's examples run as they stand, and print what they promise."""
from __future__ import annotations

import re
import subprocess
import sys

import pytest

from frontend.settings import Settings
from tests.stack import REPOSITORY, Stack

README = (REPOSITORY / "README.md").read_text()
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = _BLOCK.findall(README[README.index("## Use it"):])
#: What each example's output must contain, in the order of the README.
PROMISES = (" Paris", '"text":" Paris"', "' Paris'", " Paris", "did you mean temperature?")


def test_every_example_promises_something() -> None:
    assert len(EXAMPLES) == len(PROMISES)


@pytest.mark.parametrize("number", range(len(PROMISES)))
def test_an_example_prints_what_it_promises(stack: Stack, number: int) -> None:
    language, code = EXAMPLES[number]
    for written, here in (("127.0.0.1:8080", f"127.0.0.1:{stack.port}"), ("127.0.0.1:8001", stack.grpc),
                          (".strata/", f"{stack.home}/")):
        code = code.replace(written, here)
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
    assert ran.returncode == 0, ran.stderr
    assert PROMISES[number] in ran.stdout, ran.stdout


def test_the_snippets_that_the_start_prints_run(stack: Stack) -> None:
    """`make serve` prints a curl line and an SDK snippet that work when pasted into a shell."""
    printed = stack.output().partition("Strata is ready")[2]
    curl = printed.index("curl ")
    python = printed.index("<<'EOF'")
    start = printed.rindex("\n", 0, python) + 1
    snippets = [printed[curl:start], printed[start : printed.index("\nEOF", python) + len("\nEOF\n")]]
    for snippet in snippets:
        ran = subprocess.run(["bash", "-c", snippet], capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
        assert ran.returncode == 0, ran.stderr
        assert " Paris" in ran.stdout, (snippet, ran.stdout)


def test_every_setting_is_in_the_readme() -> None:
    source = (REPOSITORY / "frontend" / "settings.py").read_text()
    settings = set(re.findall(r'"(STRATA_\w+)"', source))
    assert settings
    assert Settings.from_environment().port
    missing = {name for name in settings if f"`{name}`" not in README}
    assert not missing
