"""What the tokenizer backend computes, free of Triton: prompts as ids with the text that each id stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from backends.text import TokenTable, pieces

Ids = npt.NDArray[np.int32]


class InvalidInput(Exception):
    """What the caller sent cannot be tokenized or described; the message is one line for the caller."""


@dataclass(frozen=True)
class Prompts:
    """Tokenized prompts, joined.

    ids, texts: one entry per token of all prompts; lengths: tokens per prompt. texts[i] is what ids[i] adds to the
    text of its prompt.
    """

    ids: Ids
    lengths: Ids
    texts: Sequence[str] = ()

    def whole_texts(self) -> list[str]:
        """The text of each prompt."""
        ends = np.cumsum(self.lengths).tolist()
        return [
            "".join(self.texts[end - length : end]) for end, length in zip(ends, self.lengths.tolist(), strict=True)
        ]


class Tokenization:
    """The tokenizer of one model."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.table = TokenTable.of(tokenizer, vocab_size)

    def tokenize(self, raw: Sequence[bytes], add_special_tokens: bool, with_texts: bool) -> Prompts:
        """Texts (UTF-8) to ids. Tokens that the tokenizer's template adds have no text; special tokens that the text
        spells out have theirs, so the joined texts are the text that was sent."""
        try:
            prompts = [text.decode() for text in raw]
        except UnicodeDecodeError:
            raise InvalidInput("text_input is not valid UTF-8") from None
        encodings = self._tokenizer.encode_batch(prompts, add_special_tokens=add_special_tokens)
        ids = [encoding.ids for encoding in encodings]
        texts: list[str] = []
        if with_texts:
            for encoding in encodings:
                texts += self._texts_without_template(encoding.ids, encoding.special_tokens_mask)
        return Prompts(
            np.fromiter((token for prompt in ids for token in prompt), np.int32),
            np.array([len(prompt) for prompt in ids], np.int32),
            texts,
        )

    def describe(self, ids: Ids, skip_special_tokens: bool) -> Prompts:
        """One prompt of ids, with the text that each adds."""
        self.check(ids)
        return Prompts(ids, np.array([len(ids)], np.int32), pieces(self.table, ids.tolist(), skip_special_tokens))

    def check(self, ids: Ids) -> None:
        """Raises InvalidInput, naming the first id outside the vocabulary and its place."""
        outside = np.flatnonzero((ids < 0) | (ids >= len(self.table.bytes)))
        if len(outside):
            place = int(outside[0])
            raise InvalidInput(
                f"input_ids[{place}] is {int(ids[place])}, outside the vocabulary of {len(self.table.bytes)} tokens"
            )

    def _texts_without_template(self, ids: list[int], template_mask: list[int]) -> list[str]:
        written = [token for token, added in zip(ids, template_mask, strict=True) if not added]
        texts = iter(pieces(self.table, written, skip_special_tokens=False))
        return ["" if added else next(texts) for added in template_mask]
