"""The one place that turns token ids into text, for prompts and for completions alike.

Llama 3 and its kin use byte-level BPE: every token is a run of bytes, and the text of a sequence is the UTF-8 decoding
of the joined bytes. Knowing the bytes of every id is therefore enough to decode exactly, one token at a time, without
looking back at what came before.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models


class UnsupportedTokenizer(Exception):
    """The tokenizer is not one whose tokens are plain bytes."""


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable alphabet for bytes (openai/gpt-2, encoder.py: bytes_to_unicode), read backwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return alphabet


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, with whatever truncation or padding its file carries switched off."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@dataclass(frozen=True)
class TokenTable:
    """What each id of the vocabulary stands for. Lists are indexed by token id and vocab_size long.

    `alone` and `alone_hidden` hold a token's text where its bytes are whole characters by themselves, else None;
    in `alone_hidden` special tokens are "".
    """

    bytes: list[bytes]
    special_ids: frozenset[int]
    alone: list[str | None]
    alone_hidden: list[str | None]

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> TokenTable:
        """The table of a tokenizer. Ids up to vocab_size that the tokenizer lacks stand for no bytes.

        Raises UnsupportedTokenizer unless it is lossless byte-level BPE.
        """
        if not isinstance(tokenizer.model, models.BPE) or not isinstance(tokenizer.decoder, decoders.ByteLevel):
            raise UnsupportedTokenizer("only byte-level BPE tokenizers are served: the decoder must be ByteLevel")
        if tokenizer.normalizer is not None:
            raise UnsupportedTokenizer("the tokenizer rewrites text before it splits it, so offsets would be wrong")
        if tokenizer.get_vocab_size() > vocab_size:
            raise UnsupportedTokenizer(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the model's vocabulary {vocab_size}"
            )
        alphabet = _byte_of_character()
        table = [b""] * vocab_size
        try:
            for token, token_id in tokenizer.get_vocab(with_added_tokens=False).items():
                table[token_id] = bytes([alphabet[character] for character in token])
        except KeyError as unknown:
            raise UnsupportedTokenizer(f"not byte-level BPE: a token holds the character {unknown}") from None
        added = tokenizer.get_added_tokens_decoder()
        for token_id, added_token in added.items():
            table[token_id] = added_token.content.encode()
        special = frozenset(token_id for token_id, added_token in added.items() if added_token.special)
        alone = [_whole_text(data) for data in table]
        hidden = ["" if token_id in special else text for token_id, text in enumerate(alone)]
        return cls(table, special, alone, hidden)


def _whole_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class PieceDecoder:
    """The text that each next token adds to a sequence.

    A token that ends inside a character adds nothing of it; the token that completes the character adds all of it.
    Bytes that can never become a character add U+FFFD, as in `bytes.decode("utf-8", "replace")`. The joined pieces
    and `finish()` are the decoding of the joined bytes, however they are cut.
    """

    __slots__ = ("_alone", "_bytes", "_decoder", "_hidden", "_open")

    def __init__(self, table: TokenTable, skip_special_tokens: bool = True) -> None:
        self._bytes = table.bytes
        self._hidden = table.special_ids if skip_special_tokens else frozenset[int]()
        self._alone = table.alone_hidden if skip_special_tokens else table.alone
        self._decoder: codecs.IncrementalDecoder | None = None
        self._open = False

    def push(self, token_id: int) -> str:
        """The text that this token adds."""
        if not self._open:
            text = self._alone[token_id]
            if text is not None:
                return text
        if token_id in self._hidden:
            return ""
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._decoder.decode(self._bytes[token_id])
        self._open = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """The replacement for a character that the sequence left incomplete, "" if there is none."""
        if not self._open or self._decoder is None:
            return ""
        self._open = False
        return self._decoder.decode(b"", final=True)


def pieces(table: TokenTable, token_ids: Iterable[int], skip_special_tokens: bool = True) -> list[str]:
    """The text that each id adds; an incomplete character at the end is part of the last one's."""
    decoder = PieceDecoder(table, skip_special_tokens)
    texts = [decoder.push(token_id) for token_id in token_ids]
    if rest := decoder.finish():
        texts[-1] += rest
    return texts
