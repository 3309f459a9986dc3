"""Follows one choice from the engine's events to what the caller sees of it: text, tokens, offsets, log probabilities.

A choice is the same streamed and not: the unstreamed one is the streamed one's pieces put together.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from frontend.completions.activations import Activations, join, positions_that_ran
from frontend.completions.logprobs import LegacyLogprobs, PlacedToken, TokenNames, positions_of
from frontend.completions.plan import Plan
from frontend.inference import ActivationPart, EngineEvent, LogprobRows


@dataclass(frozen=True)
class Piece:
    """What became visible of a choice: new text, tokens and log probabilities.

    The last one says why the choice ended, and has its Activations.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: LegacyLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    activations: Activations | None = None

    @property
    def empty(self) -> bool:
        """Whether a caller would learn nothing from it."""
        return not (self.text or self.token_ids or self.finish_reason or (self.logprobs and self.logprobs.tokens))


class Choice:
    """Choice `index` of the answer: completion `index % n` of prompt `index // n`.

    With log probabilities, a token becomes visible together with its text: the engine holds text back that may turn
    into a stop string, so tokens wait here until their text has come or the choice has ended. The offset of a token
    whose text the cut at a stop string removed, wholly or in part, is the end of the text.
    """

    def __init__(self, plan: Plan, index: int, names: TokenNames | None, prompt_rows: Sequence[LogprobRows]) -> None:
        self.index = index
        number = index // plan.request.sampling.n
        self.prompt = plan.prompts[number]
        self.capture = plan.capture(number)
        self.prompt_rows = prompt_rows
        self.completion_tokens = 0
        self.activation_bytes = 0
        self.finished = False
        self._card = plan.card
        self._names = names
        self._k = plan.request.sampling.logprobs
        self._echo = plan.request.echo
        self._begun = False
        self._shown = 0  # characters of the choice's text that are visible
        self._end = 0  # characters that all tokens so far add, before any cut
        self._rows: deque[tuple[LogprobRows, int]] = deque()  # positions whose tokens have not come yet
        self._waiting: deque[PlacedToken] = deque()
        self._parts: list[ActivationPart] = []

    @property
    def layers(self) -> tuple[int | str, ...]:
        """The Layers of its Activations, in the order asked for."""
        return self.capture.layers if self.capture else ()

    @property
    def positions(self) -> Sequence[int]:
        """The positions of its Activations so far: a range where they were asked for by a word."""
        return positions_that_ran(self.capture, len(self.prompt.ids), self.completion_tokens) if self.capture else ()

    def push(self, event: EngineEvent) -> Piece:
        """Take the engine's next event for this choice. Raises InferenceError where Activations are missing."""
        self.finished = event.finish_reason is not None
        self.completion_tokens += len(event.token_ids)
        activations = None
        if event.activations is not None:
            self._parts.append(event.activations)
        if self.finished and self.capture is not None:
            activations = join(self._parts, self.capture, self._card, self.positions)
            self.activation_bytes = activations.nbytes
            self._parts = []  # a streamed choice is kept when its Activations have gone out
        logprobs = None
        if self._k is not None and self._names is not None:
            logprobs = LegacyLogprobs(self._names, self._k)
        text = event.text
        if not self._begun:
            self._begun = True
            if self._echo:
                text = self._echo_prompt(logprobs) + text
        self._shown += len(text)
        ids: tuple[int, ...] = event.token_ids
        if logprobs is not None:
            self._place(event, logprobs.names)
            ids = self._release(logprobs)
        return Piece(text, ids, logprobs, event.finish_reason, event.stop_reason, activations)

    def _echo_prompt(self, logprobs: LegacyLogprobs | None) -> str:
        positions = chain([(None, 0)], positions_of(self.prompt_rows))
        for token, text in zip(self.prompt.ids, self.prompt.texts, strict=True):
            start, self._end = self._end, self._end + len(text)
            if logprobs is not None:
                name = logprobs.names.placed(token, text)
                logprobs.add(PlacedToken(token, name, start, self._end, *next(positions)), start)
        return "".join(self.prompt.texts)

    def _place(self, event: EngineEvent, names: TokenNames) -> None:
        if event.logprobs is not None:  # large rows come ahead of their tokens
            self._rows.extend(positions_of([event.logprobs]))
        stop_token = len(event.token_ids) - 1 if isinstance(event.stop_reason, int) else None
        for place, (token, text) in enumerate(zip(event.token_ids, event.token_texts, strict=True)):
            hidden = place == stop_token and not text
            name = names.alone(token) if hidden else names.placed(token, text)
            start, self._end = self._end, self._end + len(text)
            self._waiting.append(PlacedToken(token, name, start, self._end, *self._rows.popleft()))

    def _release(self, logprobs: LegacyLogprobs) -> tuple[int, ...]:
        ids = []
        while self._waiting and (self.finished or self._waiting[0].end <= self._shown):
            token = self._waiting.popleft()
            logprobs.add(token, token.start if token.end <= self._shown else self._shown)
            ids.append(token.token)
        return tuple(ids)


def join_pieces(pieces: list[Piece]) -> Piece:
    """All pieces of a choice as one: what an unstreamed answer shows."""
    if len(pieces) == 1:
        return pieces[0]
    logprobs = None
    for piece in pieces:
        if piece.logprobs is not None:
            if logprobs is None:
                logprobs = LegacyLogprobs(piece.logprobs.names, piece.logprobs.k)
            logprobs.tokens += piece.logprobs.tokens
            logprobs.offsets += piece.logprobs.offsets
    return Piece("".join(piece.text for piece in pieces), tuple(t for piece in pieces for t in piece.token_ids),
                 logprobs, pieces[-1].finish_reason, pieces[-1].stop_reason, pieces[-1].activations)
