"""The logit lens reads a residual stream as the model's own norm and head would."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from backends.llama_tokenizer import lens
from backends.llama_tokenizer.lens import Lens

HIDDEN, VOCABULARY, EPSILON = 32, 300, 1e-5


def checkpoint(folder: Path, dtype: torch.dtype, own_head: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a folder of weights in two files. Returns the norm's gain and the head."""
    torch.manual_seed(0)
    gain, head = torch.rand(HIDDEN) + 0.5, torch.randn(VOCABULARY, HIDDEN)
    gain, head = gain.to(dtype), head.to(dtype)
    (folder / "config.json").write_text(json.dumps({"rms_norm_eps": EPSILON}))
    save_file({"model.norm.weight": gain, "model.layers.0.x": torch.zeros(3, dtype=dtype)}, folder / "a.safetensors")
    embeddings = torch.randn(VOCABULARY, HIDDEN).to(dtype) if own_head else head
    tensors = {"model.embed_tokens.weight": embeddings} | ({"lm_head.weight": head} if own_head else {})
    save_file(tensors, folder / "b.safetensors", metadata={"format": "pt"})
    return gain.float(), head.float()


@pytest.mark.parametrize("own_head", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normed", [True, False])
def test_it_reads_what_the_model_would_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, own_head: bool, normed: bool
) -> None:
    monkeypatch.setattr(lens, "_PART", 128)  # the head does not fit one part
    gain, head = checkpoint(tmp_path, dtype, own_head)
    residual = torch.randn(7, HIDDEN) * 10
    rows = residual if normed else torch.nn.functional.rms_norm(residual, (HIDDEN,), gain, EPSILON)
    chances, ids = (rows @ head.T).softmax(-1).topk(5)
    read = Lens(tmp_path).read(residual.numpy(), normed, 5)
    assert read.ids.tolist() == ids.tolist()
    np.testing.assert_allclose(read.probabilities, chances.numpy(), rtol=1e-4, atol=1e-7)
