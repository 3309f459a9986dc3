"""What Activations must be: Hugging Face Transformers on the same checkpoint, in float32."""
from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaForCausalLM

Rows = npt.NDArray[np.float32]
#: The largest absolute error allowed: of a Layer, and after the final norm, which multiplies it.
LAYER_ERROR, FINAL_NORM_ERROR = 1e-5, 1e-4


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

    def rows(self, ids: list[int]) -> dict[int | str, Rows]:
        """Of each Layer, [tokens, hidden] for these tokens."""
        with torch.no_grad():
            states = self._model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        assert self._last is not None
        blocks = [*states[1:-1], self._last]
        rows = {"embedding": states[0], **dict(enumerate(blocks)), "final_norm": states[-1]}
        return {layer: state.reshape(len(ids), -1).numpy() for layer, state in rows.items()}

    def _keep(self, _module: object, _inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        self._last = output[0] if isinstance(output, tuple) else output


def check_parity(layer: int | str, got: Rows, right: Rows) -> None:
    """Compare the rows of one Layer."""
    assert got.shape == right.shape, layer
    error = float(np.abs(got - right).max()) if got.size else 0.0
    assert error <= (FINAL_NORM_ERROR if layer == "final_norm" else LAYER_ERROR), (layer, error)
