"""`make bench`: the same client against Strata and `vllm serve` on the same model, and what Activations cost."""
from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import uvloop

from deploy.local.settings import Settings
from model_repository import catalog
from model_repository.catalog import Model
from tests.benchmarks import activations, hugging_face, report, servers, throughput, vocabulary
from tests.benchmarks.client import BenchmarkError
from tests.benchmarks.throughput import Figures, Load
from tests.benchmarks.vocabulary import WholeVocabulary

SERVERS: dict[str, servers.Start] = {report.STRATA: servers.strata, report.VLLM: servers.vllm_serve}
LOADS = [Load(at_once, stream) for stream in (True, False) for at_once in (1, 8, 32)]
#: A whole-vocabulary answer that takes more seconds, or leaves the machine fewer bytes of memory, is given up.
VOCABULARY_PATIENCE, RESERVE = 180.0, 3 * 2**30
#: Waves of each variant with Activations: ratios that are a hundredth apart need several.
ACTIVATION_ROUNDS = 7
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What to measure, and for how long."""

    models: tuple[Model, ...]
    activation_model: Model
    servers: tuple[str, ...]
    only: str | None
    rounds: int
    activation_rounds: int
    seconds: float
    out: Path


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit status."""
    plan = _parse(arguments)
    # As Ctrl-C does: what was started is stopped, and what was measured is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    models: dict[str, object] = {}
    results = {"facts": report.facts(), "rounds": plan.rounds, "seconds": plan.seconds, "models": models}
    if plan.only in (None, "activations"):
        try:
            results["activations"] = _activations(plan)
        except (BenchmarkError, KeyboardInterrupt) as error:
            print(f"bench: {str(error) or 'stopped'}", file=sys.stderr)
            return 1
        finally:
            _write(plan, results)
    for model in plan.models if plan.only != "activations" else ():
        print(f"\n## {model.id}\n", flush=True)
        cells: dict[Load, dict[str, list[Figures]]] = {}
        answers: dict[str, WholeVocabulary] = {}
        try:
            _measure(plan, model, cells, answers)
        except (BenchmarkError, KeyboardInterrupt) as error:
            print(f"bench: {str(error) or 'stopped'}", file=sys.stderr)
            return 1
        finally:
            print(*report.tables(cells, answers), sep="\n\n", flush=True)
            models[model.id] = report.as_json(cells, answers)
            _write(plan, results)
    print(f"Figures of each round: {plan.out}")
    return 0


def _activations(plan: Plan) -> dict[str, object]:
    """What Activations cost: both servers run side by side, so that waves can alternate between them."""
    model, rates, theirs = plan.activation_model, {}, {}
    print(f"\n## Activations of {model.id}\n", flush=True)
    with servers.strata_without_capture(model) as off, servers.strata(model) as on:
        for work in activations.WORK:
            _say(f"activations, {work.name}")
            rates[work] = _run(activations.measure(off, on, model, work, plan.activation_rounds))
            print(report.activation_table(work, rates[work]), end="\n\n", flush=True)
        _say("activations, 64 MiB to the client")
        ways = _run(activations.transport(on, model, plan.activation_rounds))
        print(report.transport_table(ways), end="\n\n", flush=True)
    for work in activations.WORK:
        _say(f"Transformers, {work.name}")
        theirs[work] = hugging_face.rates(model, servers.checkpoint(model), work, plan.rounds)
        print(report.transformers_table(work, rates[work], theirs[work]), end="\n\n", flush=True)
    return report.activations_as_json(model, rates, ways, theirs)


def _write(plan: Plan, results: dict[str, object]) -> None:
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(results, indent=1) + "\n")


def _measure(
    plan: Plan, model: Model, cells: dict[Load, dict[str, list[Figures]]], answers: dict[str, WholeVocabulary]
) -> None:
    """Rounds that alternate between the servers; the last one also asks for whole vocabularies."""
    rounds = 1 if plan.only == "vocabulary" else plan.rounds
    for number in range(rounds):
        for name in plan.servers:
            _say(f"round {number + 1} of {rounds}: starting {name}")
            with SERVERS[name](model) as server:
                if plan.only != "vocabulary":
                    for load in LOADS:
                        figures = _run(throughput.measure(server, model, load, plan.seconds, f"{number} {load}"))
                        cells.setdefault(load, {}).setdefault(name, []).append(figures)
                        _say(f"{name}, {load}: {figures.rate:.0f} tok/s")
                if plan.only != "throughput" and number == rounds - 1:
                    _say(f"{name}: whole vocabulary, {vocabulary.PROMPT_TOKENS} prompt tokens")
                    answers[name] = _run(vocabulary.measure(server, model, VOCABULARY_PATIENCE, RESERVE))


def _parse(arguments: list[str] | None) -> Plan:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=str(__doc__))
    parser.add_argument("--models", default="tiny-llama", help="ids of the catalog, separated by commas (%(default)s)")
    parser.add_argument("--activation-model", default="smollm2-135m", help="whose Activations (%(default)s)")
    parser.add_argument("--servers", default=",".join(SERVERS), help="which of them, in order (%(default)s)")
    parser.add_argument("--only", choices=("throughput", "vocabulary", "activations"), help="one part of it")
    parser.add_argument("--rounds", type=int, default=2, help="how often each server is started anew (%(default)s)")
    parser.add_argument("--activation-rounds", type=int, default=ACTIVATION_ROUNDS,
                        help="waves of each variant with Activations (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each load lasts (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of two seconds a load")
    default = Settings.read({}).home / "benchmarks.json"
    parser.add_argument("--out", type=Path, default=default, help="file for the figures as JSON (%(default)s)")
    options = parser.parse_args(arguments)
    known = catalog.load()
    models, names = options.models.split(","), options.servers.split(",")
    if unknown := [*(id for id in (*models, options.activation_model) if id not in known),
                   *(name for name in names if name not in SERVERS)]:
        parser.error(f"not in the catalog or no server: {', '.join(unknown)}")
    rounds, seconds = (1, 2.0) if options.quick else (options.rounds, options.seconds)
    return Plan(tuple(known[id] for id in models), known[options.activation_model], tuple(names), options.only, rounds,
                1 if options.quick else options.activation_rounds, seconds, options.out)


def _run(work: Coroutine[object, object, T]) -> T:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except* (BenchmarkError, ConnectionError) as errors:
        raise BenchmarkError(str(errors.exceptions[0])) from None


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
