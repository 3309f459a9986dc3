"""Where a checkpoint's files are: a folder of converted models on this machine, or the hub."""

from __future__ import annotations

import os
from pathlib import Path


def local_folder(checkpoint: str) -> Path | None:
    """The checkpoint's folder below STRATA_CHECKPOINTS, if there is one."""
    root = os.environ.get("STRATA_CHECKPOINTS")
    if not root:
        return None
    folder = Path(root) / checkpoint
    return folder if folder.is_dir() else None


def tokenizer_folder(checkpoint: str, revision: str | None) -> Path:
    """A folder that holds the checkpoint's tokenizer.json, fetched from the hub if need be."""
    if folder := local_folder(checkpoint):
        return folder
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(checkpoint, "tokenizer.json", revision=revision)).parent


def weights_folder(checkpoint: str, revision: str | None) -> Path:
    """A folder that holds the checkpoint's weights and config.json, fetched from the hub if need be."""
    if folder := local_folder(checkpoint):
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(checkpoint, revision=revision, allow_patterns=["*.safetensors", "config.json"]))
