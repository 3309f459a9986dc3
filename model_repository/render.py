"""Writes the entries that Triton reads, three for each model of the catalog: `python -m model_repository.render`.

`<id>_tokenizer` and `<id>_engine` run on our backends; the ensemble `<id>` joins them for Triton's own clients. All
settings travel in `config.pbtxt`, so a frontend reads a model's card over the network and needs no shared disk.
With `--check` nothing is written, and the exit status says whether the entries match the catalog.
"""
from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_repository import catalog
from model_repository.catalog import Model

HEADER = "# Rendered from catalog.toml by `python -m model_repository.render`; change it there.\n"


@dataclass(frozen=True)
class Tensor:
    """An input or output of an entry; dims of None are decided by each request."""

    name: str
    type: str
    dims: tuple[int | None, ...]
    optional: bool = False

    def __str__(self) -> str:
        dims = ", ".join("-1" if size is None else str(size) for size in self.dims)
        optional = " optional: true" if self.optional else ""
        return f'{{ name: "{self.name}" data_type: TYPE_{self.type} dims: [ {dims} ]{optional} }}'


TOKENIZER_INPUTS = (
    Tensor("text_input", "STRING", (None,), optional=True),
    Tensor("input_ids", "INT32", (None,), optional=True),
    Tensor("vocabulary", "BOOL", (1,), optional=True),
    Tensor("add_special_tokens", "BOOL", (1,), optional=True),
    Tensor("skip_special_tokens", "BOOL", (1,), optional=True),
    # A residual stream [rows, hidden] for the output head to read; `normed` where it has passed the final norm.
    Tensor("residual", "FP32", (None, None), optional=True),
    Tensor("normed", "BOOL", (1,), optional=True),
    Tensor("lens_top", "INT32", (1,), optional=True),
)
TOKENIZER_OUTPUTS = (
    Tensor("input_ids", "INT32", (None,)),
    Tensor("lengths", "INT32", (None,)),
    Tensor("token_texts", "STRING", (None,)),
    Tensor("text", "STRING", (None,)),
    Tensor("vocabulary", "STRING", (None,)),
    Tensor("special_ids", "INT32", (None,)),
    # The likeliest ids for each row, and their probabilities: [rows, lens_top].
    Tensor("lens_ids", "INT32", (None, None)),
    Tensor("lens_probabilities", "FP32", (None, None)),
)
ENGINE_OPTIONS = (
    Tensor("sampling", "STRING", (1,), optional=True),
    Tensor("stream", "BOOL", (1,), optional=True),
    Tensor("activation_layers", "STRING", (None,), optional=True),
    Tensor("activation_positions", "STRING", (None,), optional=True),
    Tensor("activation_dtype", "STRING", (1,), optional=True),
)
#: `cancel` stands alone: the ids of requests to end.
ENGINE_INPUTS = (
    Tensor("input_ids", "INT32", (None,), optional=True),
    *ENGINE_OPTIONS,
    Tensor("cancel", "STRING", (None,), optional=True),
)
ENGINE_OUTPUTS = (
    Tensor("index", "INT32", (1,)),
    Tensor("text", "STRING", (1,)),
    Tensor("token_ids", "INT32", (None,)),
    Tensor("token_texts", "STRING", (None,)),
    Tensor("logprob_ids", "INT32", (None, None)),
    Tensor("logprobs", "FP32", (None, None)),
    Tensor("logprob_ranks", "INT32", (None,)),
    Tensor("finish_reason", "STRING", (1,)),
    Tensor("stop_reason", "STRING", (1,)),
    Tensor("prompt_logprob_ids", "INT32", (None, None)),
    Tensor("prompt_logprobs", "FP32", (None, None)),
    Tensor("prompt_logprob_ranks", "INT32", (None,)),
    # [layers, positions, hidden], in the data type that the request asks for whatever is declared here; what is large
    # comes in several responses, by positions.
    Tensor("activations", "FP32", (None, None, None)),
    # The absolute position of each row of the second axis. An ensemble can't name an input and an output alike.
    Tensor("activation_rows", "INT32", (None,)),
)
#: What the ensemble passes to its tokenizer: one text, or the ids of one prompt.
ENSEMBLE_PROMPT = (
    Tensor("text_input", "STRING", (1,), optional=True),
    Tensor("input_ids", "INT32", (None,), optional=True),
    Tensor("add_special_tokens", "BOOL", (1,), optional=True),
)


def _tensors(field: str, tensors: Iterable[Tensor]) -> str:
    return f"{field} [\n  " + ",\n  ".join(map(str, tensors)) + "\n]\n"


def _parameter(key: str, value: str) -> str:
    return f'parameters [ {{ key: "{key}" value: {{ string_value: {json.dumps(value)} }} }} ]\n'


def _map(field: str, names: Mapping[str, str]) -> str:
    return "".join(f'    {field} {{ key: "{key}" value: "{value}" }}\n' for key, value in names.items())


def _tokenizer(model: Model) -> str:
    return (
        'backend: "llama_tokenizer"\nmax_batch_size: 0\n'
        + _tensors("input", TOKENIZER_INPUTS)
        + _tensors("output", TOKENIZER_OUTPUTS)
        + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        + _parameter("checkpoint", model.checkpoint)
        + _parameter("revision", model.revision)
        + _parameter("card", json.dumps(model.card()))
    )


def _engine(model: Model) -> str:
    return (
        'backend: "llama_vllm"\nmax_batch_size: 0\n'
        + _tensors("input", ENGINE_INPUTS)
        + _tensors("output", ENGINE_OUTPUTS)
        + "model_transaction_policy { decoupled: true }\n"
        + "instance_group [ { count: 1 kind: KIND_MODEL } ]\n"
        + _parameter("engine", json.dumps(model.engine()))
    )


def _ensemble(model: Model) -> str:
    prompt = {tensor.name: tensor.name for tensor in ENSEMBLE_PROMPT}
    options = {tensor.name: tensor.name for tensor in ENGINE_OPTIONS}
    outputs = {tensor.name: tensor.name for tensor in ENGINE_OUTPUTS}
    return (
        'platform: "ensemble"\nmax_batch_size: 0\n'
        + _tensors("input", (*ENSEMBLE_PROMPT, *ENGINE_OPTIONS))
        + _tensors("output", ENGINE_OUTPUTS)
        + "model_transaction_policy { decoupled: true }\n"
        + "ensemble_scheduling { step [\n"
        + f'  {{\n    model_name: "{model.id}_tokenizer"\n    model_version: -1\n'
        + _map("input_map", prompt)
        + _map("output_map", {"input_ids": "prompt_ids"})
        + f'  }},\n  {{\n    model_name: "{model.id}_engine"\n    model_version: -1\n'
        + _map("input_map", {"input_ids": "prompt_ids"} | options)
        + _map("output_map", outputs)
        + "  }\n] }\n"
    )


def entries(models: Mapping[str, Model]) -> dict[str, str]:
    """The text of every file of the repository by its path, folders of versions (which Triton wants) included."""
    files: dict[str, str] = {}
    for model in models.values():
        for name, text in (
            (f"{model.id}_tokenizer", _tokenizer(model)),
            (f"{model.id}_engine", _engine(model)),
            (model.id, _ensemble(model)),
        ):
            files[f"{name}/config.pbtxt"] = f'{HEADER}name: "{name}"\n{text}'
            files[f"{name}/1/.keep"] = ""
    return files


def rendered(folder: Path) -> dict[str, str]:
    """The files of the entries that are in a folder now."""
    found = [path for entry in folder.glob("*/config.pbtxt") for path in entry.parent.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Make a folder's entries exactly these files; an entry that the catalog no longer has goes away."""
    kept = {Path(path).parts[0] for path in files}
    for entry in {Path(path).parts[0] for path in rendered(folder)} - kept:
        shutil.rmtree(folder / entry)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m model_repository.render", description=str(__doc__).split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when an entry differs")
    check: Any = parser.parse_args(arguments).check
    files = entries(catalog.load())
    if not check:
        write(catalog.FOLDER, files)
        return 0
    present = rendered(catalog.FOLDER)
    differing = sorted(path for path in files.keys() | present.keys() if files.get(path) != present.get(path))
    for path in differing:
        print(f"model_repository/{path} differs from catalog.toml: run python -m model_repository.render")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
