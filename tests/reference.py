"""What Activations must be: Hugging Face Transformers on the same checkpoint, in float32.

Errors are absolute where numbers are small, as tiny-llama's are. smollm2-135m has single numbers of 22,000 at its first
token, which float32 resolves to 0.002: there Transformers in float32 is itself 0.01 away from Transformers in float64.
So errors are measured by the largest number that has stood in the residual stream at that position up to that Layer,
which is what its sums were rounded to.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaForCausalLM

Numbers = npt.NDArray[np.float32]
#: The largest error allowed, for numbers up to 1: of a Layer, and after the final norm, which multiplies it.
LAYER_ERROR, FINAL_NORM_ERROR = 1e-5, 1e-4


@dataclass(frozen=True)
class Layer:
    """[tokens, hidden] of one Layer, and the error that is allowed of each token."""

    rows: Numbers
    bounds: Numbers

    def check(self, got: Numbers, places: Sequence[int] | None = None, times: float = 1.0) -> None:
        """Compare rows with those of these places, or with all. So many times the error is allowed."""
        chosen = slice(None) if places is None else list(places)
        right, bounds = self.rows[chosen], self.bounds[chosen]
        assert got.shape == right.shape
        errors = np.abs(got - right).max(axis=1)
        assert (errors <= times * bounds).all(), (errors / bounds).max()


class Reference:
    """One model. `n_layers` counts its decoder blocks."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.n_layers = self._model.config.num_hidden_layers
        self._last: torch.Tensor | None = None
        # Transformers' last hidden state is after the final norm; a Layer is before it.
        self._model.model.layers[-1].register_forward_hook(self._keep)

    @classmethod
    @cache
    def of(cls, checkpoint: Path) -> Reference:
        """The model of a checkpoint, read once."""
        return cls(checkpoint)

    @property
    def layers(self) -> list[int | str]:
        """Every Layer that can be asked for."""
        return ["embedding", *range(self.n_layers), "final_norm"]

    def run(self, ids: list[int]) -> dict[int | str, Layer]:
        """Every Layer for these tokens."""
        with torch.no_grad():
            states = self._model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        assert self._last is not None
        found: dict[int | str, Layer] = {}
        largest = np.ones(len(ids), np.float32)
        for layer, state in zip(self.layers, [*states[:-1], self._last, states[-1]], strict=True):
            rows = state.reshape(len(ids), -1).numpy()
            if layer == "final_norm":
                found[layer] = Layer(rows, FINAL_NORM_ERROR * np.maximum(np.abs(rows).max(axis=1), 1))
            else:
                largest = np.maximum(largest, np.abs(rows).max(axis=1))
                found[layer] = Layer(rows, LAYER_ERROR * largest)
        return found

    def _keep(self, _module: object, _inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        self._last = output[0] if isinstance(output, tuple) else output

