"""The text of one completion as it grows: pieces per token, stop strings, and what is safe to show already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.llama_vllm.sampling import Sampling
from backends.text import PieceDecoder, TokenTable


def longest_overlap(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of text that may still grow into a stop string."""
    longest = 0
    for stop in stops:
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at != -1 and len(text) - at > longest:
            if stop.startswith(text[at:]):
                longest = len(text) - at
                break
            at = text.find(stop[0], at + 1)
    return longest


@dataclass
class News:
    """What a completion has to tell since the last time it was asked. token_texts is empty unless wanted."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)


class CompletionText:
    """Turns generated ids into text that never has to be taken back.

    The end of the text that may still become a stop string is held back, exactly that much. A stop string counts only
    if it ends in a token after the first min_tokens. The token that ended the completion (end-of-text or one of
    stop_token_ids) adds no text unless include_stop_str_in_output.

    `update` and `num_output_tokens` are what vLLM's OutputProcessor calls on a detokenizer.
    """

    def __init__(self, table: TokenTable, sampling: Sampling) -> None:
        self._decoder = PieceDecoder(table, sampling.skip_special_tokens)
        self._stops = sampling.stop
        self._include_stop = sampling.include_stop_str_in_output
        self._min_tokens = sampling.min_tokens
        self._max_tokens = sampling.max_tokens
        self._wants_texts = sampling.logprobs is not None
        self._count = 0
        self._overlap = ""  # the end of the text that may become a stop string
        self._news = News()
        self._ready: list[str] = []

    def num_output_tokens(self) -> int:
        """Tokens generated so far, up to the one that completed a stop string."""
        return self._count

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Takes the tokens of one engine step; the stop string that one of them completed, if any.

        stop_terminated: the engine has ended the completion because of the last of these tokens. Tokens after the one
        that completed a stop string are ignored.
        """
        last = len(new_token_ids) - 1
        for place, token_id in enumerate(new_token_ids):
            ends_completion = stop_terminated and place == last
            self._count += 1
            piece = "" if ends_completion and not self._include_stop else self._decoder.push(token_id)
            if ends_completion or self._count == self._max_tokens:
                piece += self._decoder.finish()
            self._news.token_ids.append(token_id)
            if self._wants_texts:
                self._news.token_texts.append(piece)
            if not piece:
                continue
            if not self._stops:
                self._ready.append(piece)
            elif stop := self._scan(piece):
                return stop
        return None

    def take(self, finished: bool) -> News:
        """What is new and safe to show; with finished, also what was held back."""
        if finished and not self._include_stop:
            self._ready.append(self._overlap)
            self._overlap = ""
        news, self._news = self._news, News()
        news.text = "".join(self._ready)
        self._ready.clear()
        return news

    def _scan(self, piece: str) -> str | None:
        """Adds a piece, completing a stop string or holding back what may become one.

        Of several stop strings the one that ends first counts, then the one named first.
        """
        held = self._overlap
        text = held + piece
        if self._count > self._min_tokens:
            # A match must end inside the piece, and what precedes the held part can't belong to it.
            ends = [
                (at + len(stop), order)
                for order, stop in enumerate(self._stops)
                if (at := text.find(stop, max(0, len(held) + 1 - len(stop)))) != -1
            ]
            if ends:
                end, order = min(ends)
                stop = self._stops[order]
                self._overlap = ""
                self._ready.append(text[len(held) : end] if self._include_stop else text[: end - len(stop)])
                return stop
        overlap = longest_overlap(text, self._stops)
        self._overlap = text[len(text) - overlap :]
        self._ready.append(piece if self._include_stop else text[: len(text) - overlap])
        return None
