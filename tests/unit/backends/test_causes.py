"""Why an engine did not start, from the processes that vLLM starts to the one that asked for it."""
from __future__ import annotations

import logging
import logging.config
import multiprocessing
import os
from pathlib import Path

import pytest

from backends.llama_vllm import causes


def core() -> None:
    """Fails to start as vLLM's core does: it sets up logging when all is imported, and logs more than its failure."""
    causes.watch()
    causes.watch()
    logging.config.dictConfig({
        "version": 1, "disable_existing_loggers": False, "handlers": {"none": {"class": "logging.NullHandler"}},
        "loggers": {"vllm": {"handlers": ["none"], "level": "INFO", "propagate": False}}})
    log = logging.getLogger(causes.LOGGERS[0])
    try:
        raise OSError("something\nthat it gets over")
    except OSError:
        log.exception("It got over that.")
    try:
        raise RuntimeError("Cannot find any model weights\n  with `/somewhere`")
    except RuntimeError:
        log.exception("EngineCore failed to start.")


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(causes.VARIABLE, "")
    causes.prepare()


def test_what_a_process_says_of_its_failure_reaches_the_one_that_started_it() -> None:
    assert causes.first() is None
    for _ in range(2):
        process = multiprocessing.get_context("spawn").Process(target=core)
        process.start()
        process.join()
    assert causes.first() == "RuntimeError: Cannot find any model weights with `/somewhere`"
    assert len(Path(os.environ[causes.VARIABLE]).read_text().splitlines()) == 2
    causes.forget()
    assert causes.first() is None


def test_without_a_file_nothing_is_known_and_nothing_breaks() -> None:
    Path(os.environ[causes.VARIABLE]).unlink()
    causes.forget()
    assert causes.first() is None
