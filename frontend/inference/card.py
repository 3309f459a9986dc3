"""A served model's facts, as its tokenizer entry in Triton carries them."""
from __future__ import annotations

import json
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class ModelCard:
    """What a caller may know of a model, also while it is Cold. Rendered from `model_repository/catalog.toml`."""

    id: str
    checkpoint: str
    revision: str
    dtype: str
    fingerprint: str
    gpu_shape: str
    price_per_hour: float
    created: int
    #: The catalog's policy, which `strata models policy` may override.
    warm: str
    idle_minutes: float
    warm_windows: list[str]
    #: Requests that one engine is given at once, and that may wait for all of them together.
    max_requests: int
    max_queue: int
    max_model_len: int
    vocab_size: int
    n_layers: int
    hidden_size: int
    bos_token: str | None
    bos_token_id: int | None
    eos_token_id: int
    max_logprobs: int
    full_vocab_max_prompt_tokens: int
    full_vocab_max_completion_tokens: int
    #: "all", or those that may be captured: Layer indices, "embedding" and "final_norm".
    activation_layers: str | list[int | str]
    #: MiB of Activations that one answer may hold, over all its choices.
    activation_max_mb: int

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        """Read a card; a field that is missing or unknown is a KeyError, never a default."""
        stated = json.loads(text)
        known = {f.name for f in fields(cls)}
        if unknown := stated.keys() - known:
            raise KeyError(f"the model card has unknown fields: {', '.join(sorted(unknown))}")
        return cls(**{name: stated[name] for name in known})
