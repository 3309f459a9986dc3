"""What the catalog says of an engine is what the engine does."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

from backends.llama_vllm.settings import EngineSettings
from frontend.inference import ModelCard
from model_repository import catalog


def test_the_engine_keeps_the_caps_that_the_card_advertises() -> None:
    """Else a frontend plans what the engine refuses, and Triton's own clients are bound by others."""
    caps = {"max_logprobs": 7, "full_vocab_max_prompt_tokens": 2048, "full_vocab_max_completion_tokens": 99}
    model = replace(catalog.load()["tiny-llama"], **caps)
    card = ModelCard.from_json(json.dumps(model.card()))
    size = SimpleNamespace(get_vocab_size=lambda: model.vocab_size, max_model_len=model.max_model_len)
    limits = EngineSettings(**model.engine()).limits(size)  # type: ignore[arg-type]
    assert {name: getattr(card, name) for name in caps} == caps
    assert {name: getattr(limits, name) for name in caps} == caps
