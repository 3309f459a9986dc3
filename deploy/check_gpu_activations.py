"""Checks Activations on a machine with GPUs: that they are Transformers' own, and what capturing them costs.

    python -m deploy.check_gpu_activations --model smollm2-135m
    python -m deploy.check_gpu_activations --model llama-8b --runner v1 --tensor-parallel 2

Starts the engine as Triton would, without Triton, and asks it for completions under continuous batching; then runs the
same tokens through Transformers. The exit status is 1 if a row is further off than --tolerance.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from model_repository import catalog

#: The largest relative error (of the norm of a row's difference) that rounding explains.
TOLERANCES = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass
class Call:
    """A caller that collects what it is sent."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    parts: list[torch.Tensor] = field(default_factory=list)
    failure: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, message: dict[str, Any], final: bool) -> None:
        """Takes one response."""
        self.tokens += message.get("token_ids", np.empty(0, np.int32)).tolist()
        if "activations" in message:
            self.parts.append(message["activations"])
        if final:
            self.ended.set()

    def fail(self, failure: Any, message: str) -> None:
        """Takes the error that ends the request."""
        self.failure = f"{failure.value}: {message}"
        self.ended.set()

    def cancelled(self) -> bool:
        """Never."""
        return False


class NoMetrics:
    """Nobody reads figures here."""

    def gauge(self, *_: Any) -> None:
        """Forgets it."""

    def counter(self, *_: Any) -> None:
        """Forgets it."""


def submit(engine: Any, prompt: list[int], max_tokens: int, layers: Sequence[str], positions: str) -> Call:
    """Starts one completion at temperature 0, with the activations of these layers."""
    from backends.llama_vllm.activations import parse_activations
    from backends.llama_vllm.sampling import parse_sampling

    ids = np.array(prompt, np.int32)
    fields = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    sampling = parse_sampling(json.dumps(fields).encode(), ids, engine.limits)
    names = [layer.encode() for layer in layers]
    wanted = (
        parse_activations(names, [positions.encode()], None, len(ids), sampling, engine.activation_limits)
        if names
        else None
    )
    call = Call(prompt)
    engine.submit(ids, sampling, False, call, wanted)
    return call


def run(engine: Any, prompts: list[list[int]], max_tokens: int, layers: Sequence[str], positions: str) -> list[Call]:
    """Completions of all prompts at once. Raises RuntimeError if one failed."""
    calls = [submit(engine, prompt, max_tokens, layers, positions) for prompt in prompts]
    for call in calls:
        call.ended.wait()
        if call.failure:
            raise RuntimeError(call.failure)
    return calls


def reference(model: Any, ids: list[int]) -> list[torch.Tensor]:
    """[positions, hidden] after the embedding and after every block, and after the final norm, by Transformers."""
    last: dict[str, torch.Tensor] = {}
    hook = model.model.layers[-1].register_forward_hook(
        lambda module, inputs, output: last.update(rows=output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        states = model(torch.tensor([ids], device=model.device), output_hidden_states=True).hidden_states
    hook.remove()
    # Transformers' last entry is after the final norm.
    return [*(state[0] for state in states[:-1]), last["rows"].reshape(len(ids), -1), states[-1][0]]


def compare(model: Any, calls: list[Call]) -> dict[str, float]:
    """The largest relative error of any row at each layer, over all calls."""
    worst: dict[str, float] = {}
    for call in calls:
        ids = call.prompt + call.tokens[:-1]
        found = torch.cat(call.parts, dim=1).float()
        states = reference(model, ids)
        names = ["embedding", *map(str, range(len(states) - 2)), "final_norm"]
        if found.shape[:2] != (len(states), len(ids)):
            raise RuntimeError(f"{tuple(found.shape[:2])} rows came, {(len(states), len(ids))} were asked for")
        for name, rows, state in zip(names, found, states, strict=True):
            expected = state.float().cpu()
            error = ((rows - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def measure(engine: Any, prompts: list[list[int]], max_tokens: int, repeats: int) -> None:
    """Prints tokens per second with and without capture, the best of several runs each."""
    middle = str(engine.activation_limits.n_layers // 2)
    cases = [
        ("off", [], "all"),
        ("one layer, last position", [middle], "last"),
        ("one layer, all positions", [middle], "all"),
        ("all layers, last position", ["all"], "last"),
        ("all layers, all positions", ["all"], "all"),
        ("off again", [], "all"),
    ]
    base = 0.0
    for name, layers, positions in cases:
        rates = []
        for _ in range(repeats):
            begun = time.perf_counter()
            calls = run(engine, prompts, max_tokens, layers, positions)
            tokens = sum(len(call.prompt) + len(call.tokens) for call in calls)
            rates.append(tokens / (time.perf_counter() - begun))
        base = base or max(rates)
        print(f"{name:28} {max(rates):10.0f} tokens/s {max(rates) / base:6.2f}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.check_gpu_activations", description=str(__doc__))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="smollm2-135m", choices=list(catalog.load()), help="an id of the catalog")
    parser.add_argument("--runner", choices=["v1", "v2"], help="vLLM's model runner; its own choice if left out")
    parser.add_argument("--eager", action="store_true", help="without torch.compile and CUDA graphs")
    parser.add_argument("--tensor-parallel", type=int, help="GPUs to spread the model over; else the catalog's")
    parser.add_argument("--tolerance", type=float, help="largest relative error; by data type if left out")
    parser.add_argument("--prompts", type=int, default=16, help="completions at once")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="tokens of the longest prompt")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens that each completion generates")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each measurement")
    given = parser.parse_args(arguments)

    if given.runner:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(given.runner == "v2"))
    from backends.checkpoints import local_folder
    from backends.llama_vllm.engine import Engine
    from backends.llama_vllm.settings import EngineSettings

    model = catalog.load()[given.model]
    stated = model.engine()
    # What the catalog says for CPUs is left out, so that the demo model runs compiled here too.
    cpu_only = {"enforce_eager", "block_size"}
    arguments_ = {name: value for name, value in stated["engine_args"].items() if name not in cpu_only}
    if given.eager:
        arguments_["enforce_eager"] = True
    if given.tensor_parallel:
        arguments_["tensor_parallel_size"] = given.tensor_parallel
    # Chunks smaller than the longest prompts, so that they are prefilled in several; room for every row at once.
    arguments_["max_num_batched_tokens"] = max(256, given.prompt_tokens // 2)
    stated |= {"activation_max_mb": 4096, "activation_pool_mb": 16384, "engine_args": arguments_}
    engine = Engine(EngineSettings(**stated), NoMetrics())
    random = np.random.default_rng(0)
    lengths = [max(1, given.prompt_tokens * (place + 1) // given.prompts) for place in range(given.prompts)]
    prompts = [random.integers(100, model.vocab_size - 1000, length).tolist() for length in lengths]
    layers = ["embedding", *map(str, range(model.n_layers)), "final_norm"]
    calls = run(engine, prompts, given.max_tokens, layers, "all")
    measure(engine, prompts, given.max_tokens, given.repeats)
    engine.shutdown()

    from transformers import AutoModelForCausalLM

    source = str(local_folder(model.checkpoint) or model.checkpoint)
    hugging_face = AutoModelForCausalLM.from_pretrained(
        source, dtype=getattr(torch, model.dtype), attn_implementation="eager", device_map="auto"
    ).eval()
    tolerance = given.tolerance or TOLERANCES[model.dtype]
    errors = compare(hugging_face, calls)
    for name, error in errors.items():
        print(f"{name:>10}: largest relative error {error:.1e}{'' if error <= tolerance else '  TOO LARGE'}")
    return int(max(errors.values()) > tolerance)


if __name__ == "__main__":
    sys.exit(main())
