"""A slab gives back what was written, knows what was not, and is memory only for as long as somebody needs it."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.llama_vllm import slab
from backends.llama_vllm.outputs import NoRoom, make_sure_of_room
from backends.llama_vllm.positions import Run
from backends.llama_vllm.slab import DTYPES, Layout, SlabReader, SlabWriter

LAYOUT = Layout(rows=7, layers=3, hidden=5, dtype="float32")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    slab.create(tmp_path / "slab", LAYOUT)
    return tmp_path / "slab"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this container may not mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def rows(count: int, layout: Layout = LAYOUT) -> torch.Tensor:
    return torch.randn(count, layout.layers, layout.hidden).to(DTYPES[layout.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_written_is_read(tmp_path: Path, dtype: str) -> None:
    layout = Layout(7, 3, 5, dtype)
    slab.create(tmp_path / "slab", layout)
    writer = SlabWriter(tmp_path / "slab", layout)
    written = rows(5, layout)
    writer.write(Run(100, 2, 3), written[:3])
    writer.write(Run(50, 0, 2), written[3:])
    reader = SlabReader(tmp_path / "slab", layout)
    runs = [Run(101, 3, 2), Run(50, 0, 1), Run(100, 2, 1)]
    assert reader.missing(runs) is None
    tensor = reader.tensor(runs)
    assert tensor.dtype == DTYPES[dtype]
    assert tensor.shape == (3, 4, 5)
    assert torch.equal(tensor, written[[1, 2, 3, 0]].transpose(0, 1))


def test_rows_that_were_not_written_or_were_overwritten_are_missed(path: Path) -> None:
    writer = SlabWriter(path, LAYOUT)
    writer.write(Run(10, 0, 3), rows(3))
    reader = SlabReader(path, LAYOUT)
    assert reader.missing([Run(10, 0, 4)]) == 13
    writer.write(Run(18, 1, 1), rows(1))
    assert reader.missing([Run(10, 0, 3)]) == 11
    writer.write(Run(11, 1, 1), rows(1))
    assert reader.missing([Run(10, 0, 3)]) is None


def test_no_rows_are_a_tensor_too(path: Path, tmp_path: Path) -> None:
    none = Layout(0, 3, 5, "bfloat16")
    slab.create(tmp_path / "none", none)
    for reader in (SlabReader(path, LAYOUT), SlabReader(tmp_path / "none", none)):
        assert reader.missing([]) is None
        assert reader.tensor([]).shape == (3, 0, 5)


def test_the_first_failure_is_what_the_reader_hears(path: Path) -> None:
    reader, writer = SlabReader(path, LAYOUT), SlabWriter(path, LAYOUT)
    assert reader.failure() is None
    writer.fail("broken " + "é" * 1000)
    writer.fail("again")
    failure = reader.failure()
    assert failure is not None
    assert failure.startswith("broken éé")
    writer.write(Run(0, 0, 7), rows(7))
    assert reader.missing([Run(0, 0, 7)]) is None, "a failure may not run into the stamps"


def test_memory_is_free_while_the_writer_still_holds_the_slab(small_disk: Path) -> None:
    layout = Layout(100, 1, 2000, "float32")
    path = small_disk / "slab"
    slab.create(path, layout)
    writer = SlabWriter(path, layout)
    writer.write(Run(0, 0, 100), rows(100, layout))
    slab.discard(path)
    slab.create(small_disk / "next", layout)
    with pytest.raises(OSError, match="No space") as full:
        writer.write(Run(0, 0, 100), rows(100, layout))
    assert full.value.errno == errno.ENOSPC
    writer.close()
    slab.discard(path)


def test_memory_that_is_not_there_is_an_error_at_once(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space") as full:
        slab.create(small_disk / "slab", Layout(1000, 1, 2000, "float32"))
    assert full.value.errno == errno.ENOSPC
    slab.discard(small_disk / "slab")
    slab.create(small_disk / "slab", LAYOUT)


def test_answers_that_shared_memory_has_no_room_for_are_not_passed_on(small_disk: Path) -> None:
    half, whole = np.zeros(2**19, np.uint8), np.zeros(2**20, np.uint8)
    make_sure_of_room({"activations": half, "index": half}, str(small_disk))
    with pytest.raises(NoRoom, match="no room for an answer of 1572864 bytes"):
        make_sure_of_room({"activations": whole, "index": half}, str(small_disk))
    make_sure_of_room({"activations": torch.zeros(2**20), "index": half}, "/dev/shm")
