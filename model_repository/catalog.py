"""Reads `catalog.toml`: what each served model is, as one frozen record."""
from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PATH = FOLDER / "catalog.toml"
#: What the API takes of `logprobs` and `prompt_logprobs` for any model; a model may give less.
MOST_LOGPROBS = 100


@dataclass(frozen=True)
class Model:
    """One `[models.<id>]` table of the catalog, the defaults filled in."""

    id: str
    engine_version: str
    checkpoint: str
    revision: str
    created: int
    dtype: str
    max_model_len: int
    vocab_size: int
    n_layers: int
    hidden_size: int
    eos_token_id: int
    gpu_shape: str
    price_per_hour: float
    warm: str
    idle_minutes: float
    warm_windows: list[str]
    max_requests: int
    max_queue: int
    max_logprobs: int
    full_vocab_max_prompt_tokens: int
    full_vocab_max_completion_tokens: int
    activation_layers: str | list[int | str]
    activation_max_mb: int
    activation_pool_mb: int
    bos_token: str | None = None
    bos_token_id: int | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError for caps that could be advertised and never be used."""
        if not 0 <= self.max_logprobs <= MOST_LOGPROBS:
            raise ValueError(f"max_logprobs of {self.id} is {self.max_logprobs}: it must be from 0 to {MOST_LOGPROBS}")

    @property
    def fingerprint(self) -> str:
        """Equal for two servers whose numbers for the same request agree up to batching."""
        decides = (
            self.checkpoint,
            self.revision,
            self.dtype,
            self.engine_args.get("tensor_parallel_size", 1),
            self.engine_args.get("pipeline_parallel_size", 1),
            self.engine_version,
        )
        return "fp_" + hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]

    def card(self) -> dict[str, Any]:
        """What a frontend may know of the model: every field here but how its engine is started."""
        hidden = {"engine_args", "engine_version", "activation_pool_mb"}
        stated = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}
        return stated | {"fingerprint": self.fingerprint}

    def engine(self) -> dict[str, Any]:
        """What the engine backend needs to start vLLM."""
        arguments = {"dtype": self.dtype, "max_model_len": self.max_model_len} | dict(self.engine_args)
        return {
            "checkpoint": self.checkpoint,
            "revision": self.revision,
            "max_logprobs": self.max_logprobs,
            "full_vocab_max_prompt_tokens": self.full_vocab_max_prompt_tokens,
            "full_vocab_max_completion_tokens": self.full_vocab_max_completion_tokens,
            "activation_layers": self.activation_layers,
            "activation_max_mb": self.activation_max_mb,
            "activation_pool_mb": self.activation_pool_mb,
            "engine_args": arguments,
        }


def load(path: Path = PATH) -> dict[str, Model]:
    """Every model of a catalog by id. A field that is missing or unknown is a TypeError that names it; a cap that can't
    be kept, a ValueError."""
    catalog = tomllib.loads(path.read_text())
    version, defaults = catalog["engine_version"], catalog["defaults"]
    return {id: Model(id=id, engine_version=version, **(defaults | table)) for id, table in catalog["models"].items()}
