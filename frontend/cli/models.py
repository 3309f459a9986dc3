"""`strata models`: which models are Warm where, when they are to be, and which Tritons are drained."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from redis.exceptions import RedisError

from frontend.cli.shared import Columns, actor, as_json_option, open_database, print_json, show
from frontend.db import Database
from frontend.db.policies import PolicyChange
from frontend.limits.store import connect
from frontend.settings import Settings
from frontend.warmth import policies as service
from frontend.warmth import wishes
from frontend.warmth.policies import KINDS, Policy, policy_of
from frontend.warmth.records import Records
from model_repository import catalog

_CATALOG = catalog.load()
_model = click.argument("model", metavar="MODEL", type=click.Choice(list(_CATALOG)))


@dataclass(frozen=True)
class At:
    """A model at one Triton. `failure` is why its last load failed, if it did; how many seconds it is to Warm may be
    unknown."""

    model: str
    triton: str
    state: str
    drained: bool
    active: int
    waiting: int
    estimated_seconds_to_warm: float | None
    failure: str | None


@dataclass(frozen=True)
class ModelPolicy:
    """A model's policy; `changed` says that it is not the catalog's."""

    model: str
    warm: str
    idle_minutes: float
    warm_windows: list[str]
    changed: bool


@click.group()
def models() -> None:
    """Which models are Warm, and when they are to be.

    \b
    Examples:
      strata models list
      strata models policy llama-8b --warm on_demand --idle-minutes 45
      strata models policy llama-70b --window "Mon-Fri 08:00-18:00 Europe/Berlin"
      strata models drain 10.0.0.7:8001
    """


@models.command("list")
@as_json_option
def list_models(as_json: bool) -> None:
    """List each served model at each of its Tritons."""
    from frontend.inference import Inference  # it speaks to Triton, which hardly any other command needs

    settings = Settings.from_environment()
    inference = Inference(settings.triton_urls)
    states = inference.repository.states(settings.models)
    inference.close()
    with _records() as records:
        drained, breakers, waiting = records.drained(), records.breakers(), records.waiting(settings.models)
        found = []
        for model, at in states.items():
            for address, state in at.items():
                failure = breakers.get(f"{model}@{address}")
                found.append(At(
                    model, address, state, address in drained, records.active(model, address), waiting[model],
                    records.estimate(model, state), failure.reason if failure else None))
    show(found, as_json, _AT)


@models.command()
@_model
@as_json_option
def load(model: str, as_json: bool) -> None:
    """Make a model Warm, as if somebody had asked for it. Its policy decides how long it stays."""
    _wish(model, "load", as_json)


@models.command()
@_model
@as_json_option
def unload(model: str, as_json: bool) -> None:
    """Make a model Cold as soon as no request uses it. Who asks for it then makes it Warm again.

    A model whose policy keeps it Warm now is refused: change its policy.
    """
    _wish(model, "unload", as_json)


@models.command()
@_model
@click.option("--warm", type=click.Choice(KINDS), help="Always, or only once somebody asks for it.")
@click.option("--idle-minutes", type=float, help="Unload it after so long without a request.")
@click.option("--window", "windows", multiple=True, help="Keep it Warm then; can be given several times.")
@click.option("--no-windows", is_flag=True, help="Keep it Warm at no particular times.")
@click.option("--reset", is_flag=True, help="Make it the catalog's policy again.")
@as_json_option
def policy(
    model: str, warm: str | None, idle_minutes: float | None, windows: tuple[str, ...], no_windows: bool, reset: bool,
    as_json: bool,
) -> None:
    """Change when a model is to be Warm, or show it. What is left out stays as it is, and so does the catalog.

    \b
    Examples:
      strata models policy llama-8b --warm always
      strata models policy llama-70b --window "Mon-Fri 08:00-18:00 Europe/Berlin" --window "Sat 10:00-14:00 UTC"
      strata models policy llama-70b --reset
    """
    if no_windows and windows:
        raise click.UsageError("--no-windows and --window exclude each other")
    change = PolicyChange(warm, idle_minutes, windows if windows or no_windows else None)
    if reset and change != PolicyChange():
        raise click.UsageError("--reset takes no other option")
    with open_database() as database:
        if reset or change != PolicyChange():
            service.set_policy(database, actor(), model, None if reset else change)
        now = _policy(database, model)
    show([ModelPolicy(model, now.warm, now.idle_minutes, list(now.warm_windows), now.changed)], as_json, _POLICY)


@models.command()
@click.argument("triton")
@click.option("--undo", is_flag=True, help="Send it requests again.")
@as_json_option
def drain(triton: str, undo: bool, as_json: bool) -> None:
    """Send no new requests to a Triton, which is named by its address in STRATA_TRITON_URLS.

    Those that it runs finish, then its models are unloaded; stop it once `strata models list` shows them cold.
    """
    urls = Settings.from_environment().triton_urls
    known = {address for addresses in (urls.values() if not isinstance(urls, tuple) else [urls])
             for address in addresses}
    if triton not in known:
        raise click.UsageError(f"STRATA_TRITON_URLS has {', '.join(sorted(known))}, not {triton!r}")
    with _records() as records, open_database() as database:
        wishes.drain(database, records, actor(), triton, not undo)
    if as_json:
        print_json({"triton": triton, "drained": not undo})
    else:
        click.echo(f"{triton} gets requests again" if undo else f"{triton} gets no new requests", err=True)


def _policy(database: Database, model: str) -> Policy:
    entry, changed = _CATALOG[model], service.changes(database).get(model)
    return policy_of(entry.warm, entry.idle_minutes, entry.warm_windows, changed)


def _wish(model: str, wish: str, as_json: bool) -> None:
    with _records() as records, open_database() as database:
        wishes.wish(database, records, actor(), model, wish, _policy(database, model))
    if as_json:
        print_json({"model": model, "asked_for": wish})
    else:
        click.echo(f"the keeper is asked to {wish} {model}", err=True)


@contextmanager
def _records() -> Iterator[Records]:
    redis = connect(Settings.from_environment().redis_url)
    try:
        yield Records(redis)
    except RedisError as error:
        raise click.ClickException(f"Redis can't be used: {error}") from error
    finally:
        redis.close()


_AT: Columns[At] = {
    "model": lambda at: at.model,
    "triton": lambda at: at.triton,
    "state": lambda at: at.state,
    "drained": lambda at: at.drained,
    "active": lambda at: at.active,
    "waiting": lambda at: at.waiting,
    "seconds to warm": lambda at: at.estimated_seconds_to_warm,
    "last failure": lambda at: at.failure,
}
_POLICY: Columns[Any] = {
    "model": lambda policy: policy.model,
    "warm": lambda policy: policy.warm,
    "idle minutes": lambda policy: policy.idle_minutes,
    "windows": lambda policy: "; ".join(policy.warm_windows) or None,
    "changed": lambda policy: policy.changed,
}
