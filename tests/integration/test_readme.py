"""The README's examples run as they stand, and print what they promise."""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from frontend.settings import Settings
from tests.stack import REPOSITORY, Stack

README = (REPOSITORY / "README.md").read_text()
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = _BLOCK.findall(README[README.index("## Use it"):])
#: What each example's output must contain, in the order of the README.
PROMISES = (" Paris", '"text":" Paris"', "' Paris'", " Paris", "torch.Size([2, 8, 576]) torch.float32",
            "application/vnd.safetensors", "[0 4] (2, 2, 576)", "·Paris", '"text":" Paris"', "France  Paris",
            "did you mean temperature?")


def test_every_example_promises_something() -> None:
    assert len(EXAMPLES) == len(PROMISES)


def run(stack: Stack, checkpoints: Path, number: int, folder: Path) -> str:
    """Run an example against this stack in a folder of its own; what it prints."""
    language, code = EXAMPLES[number]
    for written, here in (("127.0.0.1:8080", f"127.0.0.1:{stack.port}"), ("127.0.0.1:8001", stack.grpc),
                          (".strata/checkpoints/", f"{checkpoints}/"), (".strata/", f"{stack.home}/")):
        code = code.replace(written, here)
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("number", range(len(PROMISES)))
def test_an_example_prints_what_it_promises(stack: Stack, checkpoints: Path, tmp_path: Path, number: int) -> None:
    printed = run(stack, checkpoints, number, tmp_path)
    assert PROMISES[number] in printed, printed


def test_the_picture_is_what_the_example_draws(stack: Stack, checkpoints: Path, tmp_path: Path) -> None:
    """Word for word; a shade may differ by what a batch does to the last bits."""
    (number,) = (number for number, (_, code) in enumerate(EXAMPLES) if "logit-lens.svg" in code)
    run(stack, checkpoints, number, tmp_path)
    drawn, shown = ((folder / "logit-lens.svg").read_text() for folder in (tmp_path, REPOSITORY / "docs"))
    words = re.compile(r"<text [^>]*>([^<]*)</text>")
    assert words.findall(drawn) == words.findall(shown)
    assert len(words.findall(drawn)) == 31 * 6


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
