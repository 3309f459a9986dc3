"""`make serve`: brings Strata up on this machine, says what it is doing, and stays until it is told to stop."""
from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import time

from deploy.local import checkpoints, lock, parts, preflight, probe, triton
from deploy.local.process import tail
from deploy.local.settings import Settings, SettingsError
from deploy.local.supervisor import StartError, Stopped, Supervisor
from frontend.settings import Settings as FrontendSettings
from frontend.settings import SettingsError as FrontendSettingsError

#: Seconds that a model may take to become Warm before we stop waiting and say so.
WARM_TIMEOUT = 900.0
_STARTED = time.monotonic()

READY = """
Strata is ready

In another terminal:

curl -sS http://127.0.0.1:{port}/v1/completions \\
  -H "Authorization: Bearer $(cat {key})" -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}}'

{python} - <<'EOF'
from pathlib import Path
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key=Path({key_literal}).read_text().strip())
completion = client.completions.create(
    model="{model}", prompt="The capital of France is", max_tokens=2, temperature=0
)
print(repr(completion.choices[0].text))
EOF

The App and the documentation: http://127.0.0.1:{port}/
To sign in: STRATA_HOME={home} {python} -m frontend users invite admin@localhost   (prints a token for /join)

Logs: {logs}   Stop: Ctrl-C
"""


def say(text: str, stamp: bool = True) -> None:
    """A line for whoever watches; not even a terminal that is gone stops us."""
    with contextlib.suppress(OSError):
        print(f"[{time.monotonic() - _STARTED:4.0f} s] {text}" if stamp else text, flush=True)


async def serve(settings: Settings) -> None:
    """Start everything and stay. Raises StartError when something does not come up, Stopped after a signal."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    async with Supervisor(settings.logs, say) as supervisor:
        for model in settings.models:
            if checkpoints.is_buildable(model) and not checkpoints.is_built(model, settings.checkpoints):
                say(f"building the checkpoint {model.checkpoint} (half a minute)")
                await supervisor.step(f"checkpoint-{model.id}", parts.checkpoint(model), parts.in_repository(settings))
        say("starting valkey, triton and keeper, preparing the database")
        await supervisor.start(parts.valkey(settings))
        # The keeper is there when Triton is, because an engine takes longest to start: half a minute on one core,
        # during which the frontend starts on another.
        await asyncio.gather(
            supervisor.start(parts.inference(settings)),
            supervisor.start(parts.keeper(settings)),
            supervisor.step("setup", parts.setup(settings), parts.in_repository(settings)),
        )
        say("starting frontend and worker")
        await asyncio.gather(supervisor.start(parts.frontend(settings)), supervisor.start(parts.worker(settings)))
        await _warm(supervisor, settings)
        _greet(settings)
        await supervisor.wait()


async def _warm(supervisor: Supervisor, settings: Settings) -> None:
    awaited = [model.id for model in settings.models if model.warm == "always"]
    if not awaited:
        return
    say(f"loading {', '.join(awaited)} (half a minute)")
    key = settings.demo_key.read_text().strip()

    async def all_warm() -> bool:
        states = await probe.model_states(settings.port, key)
        return all(states.get(id) == "warm" for id in awaited)

    if not await supervisor.until(all_warm, WARM_TIMEOUT, every=0.5):
        raise StartError(f"{', '.join(awaited)} not Warm after {WARM_TIMEOUT:.0f} s", supervisor.log("triton"))


def _greet(settings: Settings) -> None:
    say("everything runs")
    text = READY.format(
        port=settings.port,
        home=shlex.quote(str(settings.home)),
        key=shlex.quote(str(settings.demo_key)),
        key_literal=repr(str(settings.demo_key)),
        python=shlex.quote(sys.executable),
        model=settings.models[0].id,
        logs=settings.logs,
    )
    say(text, stamp=False)


def main() -> int:
    """The command. Returns its exit status: 1 when something stood in the way or did not come up."""
    try:
        settings = Settings.read(os.environ)
        FrontendSettings.from_environment()  # its parts would find a wrong one only when others already run
        found = list(preflight.problems(settings)) or list(triton.missing_libraries(settings))
        held = lock.acquire(settings.home) if not found else None
    except (SettingsError, FrontendSettingsError, lock.Held) as error:
        found = [str(error)]
    if found:
        print(*(f"strata: {problem}" for problem in found), sep="\n", file=sys.stderr)
        return 1
    try:
        asyncio.run(serve(settings))
    except StartError as error:
        print(*tail(error.log), f"strata: {error} (see {error.log})", sep="\n", file=sys.stderr)
        return 1
    except Stopped:
        pass
    finally:
        triton.sweep_shared_memory(settings)  # it leaves its regions when it does not wait for an engine to unload
        if held:
            held.close()
    say("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
