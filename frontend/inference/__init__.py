"""Inference: the only room of the frontend that speaks to Triton."""
from __future__ import annotations

from frontend.inference.card import ModelCard
from frontend.inference.client import Inference
from frontend.inference.events import (
    ActivationPart,
    Capture,
    EngineEvent,
    Generation,
    LogprobRows,
    TokenizedPrompt,
    Vocabulary,
)
from frontend.inference.faults import Cancelled, LoadError, NotWarm, Unreachable

__all__ = [
    "ActivationPart", "Cancelled", "Capture", "EngineEvent", "Generation", "Inference", "LoadError", "LogprobRows",
    "ModelCard", "NotWarm", "TokenizedPrompt", "Unreachable", "Vocabulary",
]
