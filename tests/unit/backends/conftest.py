"""Llama 3's real tokenizer, built from its ranks, and a tiny byte-level one for tests that need odd tokens."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from backends.text import TokenTable

LLAMA_3_VOCABULARY = 128_256


@pytest.fixture(scope="session")
def llama_3() -> Tokenizer:
    """The tokenizer of the tests' model: Llama 3's ranks with 256 special tokens behind them."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    spec = importlib.util.find_spec("llama_models")
    assert spec is not None
    assert spec.origin is not None
    special = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(254))]
    ranks = Path(spec.origin).parent / "llama3" / "tokenizer.model"
    return TikTokenConverter(vocab_file=str(ranks), extra_special_tokens=special).converted()


@pytest.fixture(scope="session")
def llama_3_table(llama_3: Tokenizer) -> TokenTable:
    return TokenTable.of(llama_3, LLAMA_3_VOCABULARY)


@pytest.fixture(scope="session")
def byte_table() -> TokenTable:
    """Ids 0-255 are the bytes, 256 is the special token <end>, 257-259 lack a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: place for place, character in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    table = TokenTable.of(tokenizer, 260)
    by_byte = sorted(range(256), key=lambda token_id: table.bytes[token_id])
    order = [*by_byte, *range(256, 260)]
    return TokenTable(
        [table.bytes[token_id] for token_id in order],
        table.special_ids,
        [table.alone[token_id] for token_id in order],
        [table.alone_hidden[token_id] for token_id in order],
    )
