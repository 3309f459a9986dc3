"""The files that are written by hand are what the safetensors library reads and writes."""
from __future__ import annotations

import base64
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontend.completions.activations import Activations
from frontend.completions.tensor_file import TensorFile
from frontend.inference import ActivationPart

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def of(tensor: torch.Tensor, metadata: dict[str, str], rows: int = 1000) -> TensorFile:
    """The file of a tensor that came in parts of so many rows."""
    name = next(name for name, dtype in DTYPES.items() if dtype == tensor.dtype)
    parts, at = [], 0
    for part in tensor.split(rows, dim=1):
        positions = tuple(range(at, at + part.shape[1]))
        data = part.contiguous().view(torch.uint8).numpy().reshape(-1).data
        parts.append(ActivationPart(name, tuple(part.shape), positions, data))
        at += part.shape[1]
    layers, positions_, hidden = tensor.shape
    return TensorFile.of(Activations(name, (layers, positions_, hidden), tuple(range(at)), tuple(parts)), metadata)


def metadata_of(file: bytes, folder: Path) -> dict[str, str]:
    path = folder / "file.safetensors"
    path.write_bytes(file)
    with safetensors.safe_open(path, "pt") as opened:
        return dict(opened.metadata())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [2, 1000])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 0, 8), (3, 4097, 193)], ids=str)
def test_the_library_reads_the_numbers_bit_by_bit(
    dtype: str, shape: tuple[int, ...], rows: int, tmp_path: Path
) -> None:
    tensor = torch.randn(shape).to(DTYPES[dtype])
    metadata = {"model": "m", "positions": json.dumps(list(range(shape[1]))), "completion": '{"text": "é\\n\\u0000🙂"}'}
    file = of(tensor, metadata, rows)
    whole = b"".join(file.parts())
    assert len(file) == len(whole)
    loaded = safetensors.torch.load(whole)
    assert loaded.keys() == {"activations"}
    assert loaded["activations"].dtype == tensor.dtype
    assert torch.equal(loaded["activations"].view(torch.uint8), tensor.view(torch.uint8))
    assert metadata_of(whole, tmp_path) == metadata
    assert base64.b64decode(b"".join(file.base64()), validate=True) == whole


def test_metadata_of_megabytes_are_cut_as_the_numbers_are() -> None:
    file = of(torch.zeros(1, 2, 3), {"completion": "x" * 3_000_000})
    parts = list(file.parts())
    assert len(parts) == 4
    assert len({len(part) for part in parts[:-1]}) == 1
    assert base64.b64decode(b"".join(file.base64()), validate=True) == b"".join(parts)


@given(st.integers(0, 9), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_numbers_begin_at_a_multiple_of_8_whatever_the_metadata(count: int, text: str) -> None:
    file = of(torch.arange(count, dtype=torch.float32).reshape(1, 1, count), {"completion": text})
    assert len(file.head) % 8 == 0
    assert safetensors.torch.load(b"".join(file.parts()))["activations"].flatten().tolist() == list(range(count))


def test_writing_a_large_file_takes_little_memory() -> None:
    numbers = np.zeros(2**24, np.float32)  # 64 MiB
    whole = ActivationPart("float32", (1, 2**14, 2**10), tuple(range(2**14)), memoryview(numbers.view(np.uint8)))
    activations = Activations("float32", (1, 2**14, 2**10), whole.positions, (whole,))
    tracemalloc.start()
    try:
        file = TensorFile.of(activations, {})
        length = sum(len(part) for part in file.base64())
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length == -(-len(file) // 3) * 4
    assert most < 8 * 2**20
