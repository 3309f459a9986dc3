"""How Triton's entries of a model are named; the ensemble has the model's own id."""
from __future__ import annotations

TOKENIZER, ENGINE = "_tokenizer", "_engine"
