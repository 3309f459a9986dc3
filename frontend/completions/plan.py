"""Checks a request against the model that it asks for, and fixes max_tokens: the last step that can refuse it."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import orjson

from frontend.completions import activations
from frontend.completions.request import CompletionRequest, RawPrompt, Sampling
from frontend.errors import ContextLengthExceeded, FullVocabTooLarge, InvalidRequest, Problem
from frontend.inference import Capture, ModelCard, TokenizedPrompt

#: The value of logprobs and prompt_logprobs that asks for every id of the vocabulary.
WHOLE_VOCABULARY = -1
#: The most log probabilities over prompts that one answer holds, about 50 bytes each, the whole vocabulary apart.
MOST_PROMPT_ENTRIES = 16_000_000
#: An answer with more log probabilities than this is rendered while it is sent, never whole in memory.
MOST_ENTRIES_IN_MEMORY = 100_000
#: The same for bytes of Activations.
MOST_ACTIVATION_BYTES_IN_MEMORY = 2**22


@dataclass(frozen=True)
class Plan:
    """A request that will run: the caller's wishes, the model, the tokens of each prompt, and the fixed max_tokens."""

    request: CompletionRequest
    card: ModelCard
    prompts: tuple[TokenizedPrompt, ...]
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; a prompt counts once, also for n > 1."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    @property
    def choices(self) -> int:
        """Completions that the answer has: n for each prompt."""
        return len(self.prompts) * self.request.sampling.n

    @property
    def least_max_tokens(self) -> int:
        """How far max_tokens may be lowered, where the caller's tokens do not allow more.

        Not below min_tokens, and not so far that a position whose Activations were asked for could not run.
        """
        least = max(1, self.request.sampling.min_tokens)
        if self.request.activations:
            lengths = [len(prompt.ids) for prompt in self.prompts]
            least = max(least, activations.least_max_tokens(self.request.activations, lengths))
        return least

    @property
    def prompt_logprobs(self) -> int | None:
        """How many likeliest tokens Inference must return over the prompt: for the field itself and for echo."""
        sampling = self.request.sampling
        asked = [sampling.prompt_logprobs]
        if self.request.echo:
            asked.append(sampling.logprobs)
        numbers = [number for number in asked if number is not None]
        if not numbers:
            return None
        return WHOLE_VOCABULARY if WHOLE_VOCABULARY in numbers else max(numbers)

    @property
    def prompt_entries(self) -> int:
        """Log probabilities over the prompts that the answer holds: each choice carries its prompt's."""
        k = self.prompt_logprobs
        if k is None:
            return 0
        columns = self.card.vocab_size if k == WHOLE_VOCABULARY else k + 1
        return self.prompt_tokens * self.request.sampling.n * columns

    @property
    def entries(self) -> int:
        """The most log probabilities that the answer holds."""
        k = self.request.sampling.logprobs
        columns = 0 if k is None else self.card.vocab_size if k == WHOLE_VOCABULARY else k + 1
        return self.prompt_entries + len(self.prompts) * self.request.sampling.n * self.max_tokens * columns

    @property
    def many_logprobs(self) -> bool:
        """Whether the answer's log probabilities may be too many to stand in memory as text."""
        return self.entries > MOST_ENTRIES_IN_MEMORY

    @property
    def activation_bytes(self) -> int:
        """The most bytes that the answer's Activations can have."""
        asked = self.request.activations
        lengths = [len(prompt.ids) for prompt in self.prompts]
        return activations.size(asked, self.card, lengths, self.max_tokens, self.request.sampling.n) if asked else 0

    @property
    def renders_as_it_goes(self) -> bool:
        """Whether the answer may be too large to stand in memory as text."""
        return self.many_logprobs or self.activation_bytes > MOST_ACTIVATION_BYTES_IN_MEMORY

    def capture(self, prompt: int) -> Capture | None:
        """The Activations that the engine is to keep for this prompt's choices."""
        asked = self.request.activations
        return activations.capture_of(asked, self.card, len(self.prompts[prompt].ids)) if asked else None

    def engine_sampling(self) -> bytes:
        """The engine's `sampling` input: every field, defaults included, so that no checkpoint decides one."""
        fields = asdict(self.request.sampling)
        fields |= {
            "max_tokens": self.max_tokens,
            "prompt_logprobs": self.prompt_logprobs,
            "logit_bias": {str(token): bias for token, bias in self.request.sampling.logit_bias},
        }
        return orjson.dumps(fields)


def check_ids(request: CompletionRequest, card: ModelCard) -> None:
    """Refuse ids outside the model's vocabulary, and more log probabilities or other Layers than the model gives.

    Runs before anything is tokenized, so it reports all its problems at once.
    """
    problems = [*_prompt_problems(request.prompts, card.vocab_size), *_sampling_problems(request.sampling, card)]
    if request.activations:
        problems += activations.check_layers(request.activations, card)
    if problems:
        raise InvalidRequest.of(problems)


def check_size(texts: Sequence[str], card: ModelCard, longest_token: int) -> None:
    """Refuse a text that can't fit the context whatever its tokens are; `longest_token` is in bytes."""
    tokens = max(len(text.encode()) for text in texts) // longest_token
    if tokens > card.max_model_len:
        raise ContextLengthExceeded(
            f"The prompt has at least {tokens} tokens and the context of {card.id!r} is {card.max_model_len} tokens.",
            "prompt")


def make_plan(
    request: CompletionRequest, card: ModelCard, prompts: Sequence[TokenizedPrompt], max_total_tokens: int
) -> Plan:
    """Fix max_tokens and check what depends on the prompts' lengths.

    Raises InvalidRequest, ContextLengthExceeded, FullVocabTooLarge or ActivationsTooLarge.
    """
    for number, prompt in enumerate(prompts):
        if not prompt.ids:
            which = "The prompt" if len(prompts) == 1 else f"Prompt {number}"
            raise InvalidRequest(f"{which} has no tokens: this model's tokenizer adds none to an empty text. "
                                 "Send at least one token.", "prompt")
    longest = max(len(prompt.ids) for prompt in prompts)
    room = card.max_model_len - longest
    if request.max_tokens is None:
        max_tokens = min(max_total_tokens, room)
        if max_tokens < 1:
            raise ContextLengthExceeded(
                f"The prompt has {longest} tokens and the context of {card.id!r} is {card.max_model_len} tokens, "
                f"which leaves {max(room, 0)} for max_tokens.", "prompt")
    else:
        max_tokens = request.max_tokens
        if max_tokens > room:
            raise ContextLengthExceeded(
                f"The prompt has {longest} tokens and max_tokens is {max_tokens}, together {longest + max_tokens}; "
                f"the context of {card.id!r} is {card.max_model_len} tokens.", "max_tokens")
    plan = Plan(request, card, tuple(prompts), max_tokens)
    _check_totals(plan)
    if request.activations:
        lengths = [len(prompt.ids) for prompt in prompts]
        activations.check_fit(request.activations, card, lengths, max_tokens, request.sampling.n)
    return plan


def _check_totals(plan: Plan) -> None:
    sampling, choices = plan.request.sampling, len(plan.prompts) * plan.request.sampling.n
    if sampling.min_tokens > plan.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens}, more than max_tokens, which is {plan.max_tokens} here.",
            "min_tokens")
    cap, positions = plan.card.full_vocab_max_prompt_tokens, plan.prompt_tokens * sampling.n
    field = "prompt_logprobs" if sampling.prompt_logprobs == plan.prompt_logprobs else "logprobs"
    if plan.prompt_logprobs == WHOLE_VOCABULARY and positions > cap:
        raise FullVocabTooLarge(
            f"{field} -1 asks for the whole vocabulary over {positions} prompt tokens"
            f"{f' (n × {plan.prompt_tokens})' if sampling.n > 1 else ''}; "
            f"full_vocab_max_prompt_tokens of {plan.card.id!r} is {cap}.", field)
    if plan.prompt_logprobs != WHOLE_VOCABULARY and plan.prompt_entries > MOST_PROMPT_ENTRIES:
        raise InvalidRequest(
            f"{field} {plan.prompt_logprobs} over {plan.prompt_tokens} prompt tokens and n {sampling.n} is "
            f"{plan.prompt_entries} log probabilities; at most {MOST_PROMPT_ENTRIES} fit one answer.", field)
    cap = plan.card.full_vocab_max_completion_tokens
    if sampling.logprobs == WHOLE_VOCABULARY and choices * plan.max_tokens > cap:
        raise FullVocabTooLarge(
            f"logprobs -1 asks for the whole vocabulary over up to {choices * plan.max_tokens} completion tokens; "
            f"full_vocab_max_completion_tokens of {plan.card.id!r} is {cap}. Set max_tokens to at most "
            f"{cap // choices} to fit." if cap >= choices else
            f"logprobs -1 with {choices} choices is more than full_vocab_max_completion_tokens, {cap}.", "logprobs")


def _prompt_problems(prompts: Sequence[RawPrompt], vocab_size: int) -> Iterator[Problem]:
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            continue
        where = "" if len(prompts) == 1 else f" of prompt {number}"
        for place, token in enumerate(prompt):
            if token >= vocab_size:
                yield Problem(f"Token id {token} at position {place}{where} is outside the vocabulary of "
                              f"{vocab_size} ids (0 to {vocab_size - 1}).", "prompt")
                break


def _sampling_problems(sampling: Sampling, card: ModelCard) -> Iterator[Problem]:
    last = card.vocab_size - 1
    for field, tokens in (("stop_token_ids", sampling.stop_token_ids),
                          ("allowed_token_ids", sampling.allowed_token_ids or ()),
                          ("logit_bias", tuple(token for token, _ in sampling.logit_bias))):
        beyond = next((token for token in tokens if token > last), None)
        if beyond is not None:
            yield Problem(f"{field}: token id {beyond} is outside the vocabulary of {card.vocab_size} ids "
                          f"(0 to {last}).", field)
    for field, number in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if number is not None and number > card.max_logprobs:
            yield Problem(f"{field} is {number}; {card.id!r} gives at most {card.max_logprobs}, "
                          "or the whole vocabulary with -1.", field)
