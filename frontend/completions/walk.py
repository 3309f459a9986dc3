"""One completions request from its checked fields to its answer. Each step takes and returns plain data.

parse (schemas) → authenticate → rate limit → wait for a slot (limits) → look up the model → tokenize → plan max_tokens
→ wait until the model is Warm and has room (warmth) → hold tokens, check the Spend limit (budgets) → generate → answer
→ settle (budgets)
"""
from __future__ import annotations

import secrets
import string
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from frontend.completions.answer import Answer, Usage
from frontend.completions.choices import Choice, Piece, join_pieces
from frontend.completions.logprobs import TokenNames, check_numbers
from frontend.completions.plan import Plan, check_ids, check_size, make_plan
from frontend.completions.request import CompletionRequest
from frontend.completions.tensor_file import TensorFile
from frontend.errors import InternalError
from frontend.inference import EngineEvent, Generation, Inference, LogprobRows, ModelCard, TokenizedPrompt

#: Characters beyond which a text is worth a look before it costs the tokenizer seconds.
LONG_TEXT = 100_000
#: The last event of a stream that is whole.
DONE = b"data: [DONE]\n\n"
_ID_ALPHABET = string.ascii_letters + string.digits
#: Gets a function that cancels the work on the engine; called once, before it begins.
OnStart = Callable[[Callable[[], object]], object]


@dataclass(frozen=True)
class Limits:
    """What the settings allow one request. `timeout` is in seconds."""

    max_total_tokens: int
    timeout: float


def plan_request(request: CompletionRequest, inference: Inference, limits: Limits) -> Plan:
    """Look up the model, tokenize and fix max_tokens: every refusal that the model decides happens here."""
    card = inference.model(request.model)
    check_ids(request, card)
    return make_plan(request, card, _tokenize(request, card, inference, limits), limits.max_total_tokens)


def _tokenize(
    request: CompletionRequest, card: ModelCard, inference: Inference, limits: Limits
) -> list[TokenizedPrompt]:
    """The prompts as tokens. Only echo needs the texts of the tokens."""
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    if texts:
        if max(map(len, texts)) > LONG_TEXT:
            check_size(texts, card, inference.vocabulary(card.id).longest)
        return inference.tokenize(card.id, texts, request.add_special_tokens, request.echo, limits.timeout)
    ids = [prompt for prompt in request.prompts if not isinstance(prompt, str)]
    if request.echo:
        return [inference.describe(card.id, prompt, request.sampling.skip_special_tokens) for prompt in ids]
    return [TokenizedPrompt(prompt, ()) for prompt in ids]


class Run:
    """A planned request on the engine. Made when it may start; the engine has begun once `begin` returns.

    `begun` and `completion_tokens` say what the engine has produced so far: what the request is charged for. Another
    thread may read them.
    """

    def __init__(
        self, plan: Plan, inference: Inference, address: str, request_id: str, limits: Limits, on_start: OnStart
    ) -> None:
        """`address` is the Triton's at which the model is Warm."""
        self.plan = plan
        self.begun = False
        self.completion_tokens = 0
        sampling = plan.request.sampling
        wants_names = sampling.logprobs is not None or sampling.prompt_logprobs is not None
        names = None
        if wants_names:
            names = TokenNames(inference.vocabulary(plan.card.id), plan.request.return_tokens_as_token_ids)
        self.answer = Answer(_completion_id(), int(time.time()), plan, names)
        engine_sampling = plan.engine_sampling()
        self._events = inference.generate(
            plan.card.id, address,
            [Generation(prompt.ids, engine_sampling, plan.request.stream, plan.capture(number))
             for number, prompt in enumerate(plan.prompts)],
            request_id, limits.timeout, on_start)
        self._choices: dict[int, Choice] = {}
        self._prompt_rows: dict[int, list[LogprobRows]] = {}
        self._first: EngineEvent | None = None

    def begin(self) -> None:
        """Wait for the engine's first word, so that what fails before it is still an error and not half an answer."""
        self._first = self._next()

    def body(self) -> Iterator[bytes]:
        """The whole answer as JSON, once every choice has ended."""
        return self.answer.body(self.done(), self.usage())

    def file(self) -> TensorFile:
        """The whole answer of a single choice as a file of its Activations, which it must have been asked for."""
        ((choice, piece),) = self.done()
        assert piece.activations is not None  # the choice has seen to it
        return self.answer.file(choice, piece, piece.activations, self.usage())

    def events(self) -> Iterator[bytes]:
        """The answer as server-sent events, up to `[DONE]`. Closing the iterator stops the engine."""
        seen: set[int] = set()
        for choice, piece in self._pieces():
            if piece.empty:
                continue
            parts = self.answer.event(choice, piece, choice.index not in seen)
            if self.plan.renders_as_it_goes:
                yield from parts
            else:
                yield b"".join(parts)
            seen.add(choice.index)
        if self.plan.request.include_usage:
            yield self.answer.usage_event(self.usage())
        yield DONE

    def usage(self) -> Usage:
        """The tokens so far."""
        return Usage(self.plan.prompt_tokens, sum(choice.completion_tokens for choice in self._choices.values()))

    @property
    def activation_bytes(self) -> int:
        """Bytes of Activations so far, those of choices that have ended."""
        return sum(choice.activation_bytes for choice in self._choices.values())

    def close(self) -> None:
        """Stop the engine, if it still runs."""
        self._events.close()

    def done(self) -> list[tuple[Choice, Piece]]:
        """Every choice, once all have ended."""
        pieces: dict[int, list[Piece]] = {}
        for choice, piece in self._pieces():
            pieces.setdefault(choice.index, []).append(piece)
        return [(self._choices[index], join_pieces(pieces[index])) for index in sorted(pieces)]

    def _pieces(self) -> Iterator[tuple[Choice, Piece]]:
        expected = len(self.plan.prompts) * self.plan.request.sampling.n
        with closing(self._events):
            event = self._first
            while event is not None:
                for rows in (event.prompt_logprobs, event.logprobs):
                    if rows is not None:
                        check_numbers(rows)
                if event.prompt_logprobs is not None:
                    self._prompt_rows.setdefault(event.prompt, []).append(event.prompt_logprobs)
                if (event.token_ids or event.text or event.finish_reason or event.logprobs is not None
                        or event.activations is not None):
                    choice = self._choice(event)
                    yield choice, choice.push(event)
                event = self._next()
        if sum(choice.finished for choice in self._choices.values()) != expected:
            raise InternalError("Inference ended without finishing every choice.")

    def _next(self) -> EngineEvent | None:
        event = next(self._events, None)
        if event is not None:
            self.completion_tokens += len(event.token_ids)
            self.begun = True
        return event

    def _choice(self, event: EngineEvent) -> Choice:
        index = event.prompt * self.plan.request.sampling.n + event.index
        if index not in self._choices:
            rows = self._prompt_rows.get(event.prompt, [])
            self._choices[index] = Choice(self.plan, index, self.answer.names, rows)
        return self._choices[index]


def _completion_id() -> str:
    return "cmpl-" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(28))
