"""Asks for Activations over HTTP, and reads them as a researcher does."""
from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch

Json = dict[str, Any]


def complete(http: httpx.Client, **body: Any) -> list[Json]:
    """The choices of a request for tiny-llama unless told otherwise, with their tokens."""
    answer = http.post("/v1/completions", json={"model": "tiny-llama", "return_token_ids": True} | body)
    assert answer.status_code == 200, answer.text[:2000]
    choices = answer.json()["choices"]
    assert isinstance(choices, list)
    return choices


def tensor(choice: Json) -> torch.Tensor:
    """[layers, positions, hidden], checked against what the answer says of it."""
    activations = choice["activations"]
    loaded = safetensors.torch.load(base64.b64decode(activations["data"], validate=True))["activations"]
    assert list(loaded.shape) == activations["shape"]
    assert str(loaded.dtype) == f"torch.{activations['dtype']}"
    return loaded


def numbers(choice: Json) -> npt.NDArray[np.float32]:
    """The same in float32."""
    array: npt.NDArray[np.float32] = tensor(choice).float().numpy()
    return array


def ran(choice: Json) -> list[int]:
    """The tokens that were fed to the model."""
    ids = choice["prompt_token_ids"] + choice["token_ids"][:-1]
    assert isinstance(ids, list)
    return ids
