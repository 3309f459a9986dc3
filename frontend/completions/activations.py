"""Which Activations a request gets: what its model and its prompts allow, how large they are, which rows they have.

A position runs when its token is fed to the model: those of a prompt do, and of all generated tokens but the last.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontend.completions.request import ALL, DTYPE_BYTES, NAMED_LAYERS, ActivationRequest, Layer
from frontend.errors import ActivationsTooLarge, InferenceError, InvalidRequest, Problem
from frontend.inference import ActivationPart, Capture, ModelCard

MIB = 2**20


@dataclass(frozen=True, eq=False)
class Activations:
    """What was captured for one choice, in the parts in which it came; `shape` is [layers, positions, hidden]."""

    dtype: str
    shape: tuple[int, int, int]
    positions: tuple[int, ...]
    parts: tuple[ActivationPart, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.shape[0] * self.shape[1] * self.shape[2] * DTYPE_BYTES[self.dtype]

    def pieces(self) -> Iterator[memoryview]:
        """The numbers in order. A part has all Layers of a few positions, and a Layer comes as a whole."""
        for layer in range(self.shape[0]):
            for part in self.parts:
                size = part.data.nbytes // self.shape[0]
                yield part.data[layer * size : (layer + 1) * size]


def allowed_layers(card: ModelCard) -> tuple[Layer, ...]:
    """The Layers of a model that may be captured, indices first."""
    if card.activation_layers == ALL:
        return (*range(card.n_layers), *NAMED_LAYERS)
    return tuple(card.activation_layers)


def layers_of(asked: ActivationRequest, card: ModelCard) -> tuple[Layer, ...]:
    """The Layers that were asked for, ALL as its indices."""
    return tuple(range(card.n_layers)) if isinstance(asked.layers, str) else asked.layers


def capture_of(asked: ActivationRequest, card: ModelCard, prompt_tokens: int) -> Capture:
    """What the engine is to keep for a prompt of so many tokens: everything explicit, defaults included."""
    positions = asked.positions
    if not isinstance(positions, str):
        positions = tuple(place if place >= 0 else prompt_tokens + place for place in positions)
    return Capture(layers_of(asked, card), positions, asked.dtype or card.dtype)


def positions_that_ran(capture: Capture, prompt_tokens: int, generated: int) -> Sequence[int]:
    """The absolute positions that `capture` means once so many tokens are generated: a range where it is a word."""
    end = prompt_tokens + generated - 1
    match capture.positions:
        case "all":
            return range(end)
        case "prompt":
            return range(prompt_tokens)
        case "generated":
            return range(prompt_tokens, end)
        case "last":
            return range(end - 1, end)
        case positions:
            assert not isinstance(positions, str)
            return positions


def check_layers(asked: ActivationRequest, card: ModelCard) -> Iterator[Problem]:
    """The Layers that were asked for and that the model does not have or does not give."""
    allowed = allowed_layers(card)
    beyond = [layer for layer in layers_of(asked, card) if layer not in allowed]
    if not beyond:
        return
    if not allowed:
        yield Problem(f"{card.id!r} gives no Activations.", "activations")
        return
    has = f"the Layers 0 to {card.n_layers - 1}" if card.activation_layers == ALL else ", ".join(map(str, allowed))
    first = beyond[0] if isinstance(beyond[0], str) or beyond[0] < 10**20 else "that is huge"
    yield Problem(f"activations.layers holds {first}, and the Activations of {card.id!r} are those of {has}.",
                  "activations.layers")


def check_positions(
    asked: ActivationRequest, card: ModelCard, prompt_tokens: Sequence[int], max_tokens: int
) -> Iterator[Problem]:
    """What is wrong with listed positions, the first for each prompt."""
    if isinstance(asked.positions, str):
        return
    for number, tokens in enumerate(prompt_tokens):
        of_prompt = "the prompt" if len(prompt_tokens) == 1 else f"prompt {number}"
        seen: dict[int, int] = {}
        for place, position in zip(asked.positions, capture_of(asked, card, tokens).positions, strict=True):
            assert isinstance(position, int)
            problem = ""
            if not 0 <= position < tokens + max_tokens - 1:
                shown = place if abs(place) < 10**20 else "one that is huge"
                problem = (f"holds {shown}, and with max_tokens {max_tokens} the positions of {of_prompt}, "
                           f"which has {tokens} tokens, are 0 to {tokens + max_tokens - 2} "
                           f"(from its end, -1 to -{tokens})")
            elif position in seen:
                problem = f"holds {seen[position]} and {place}, which are the same position of {of_prompt}"
            if problem:
                yield Problem(f"activations.positions {problem}.", "activations.positions")
                break
            seen[position] = place


def least_max_tokens(asked: ActivationRequest, prompt_tokens: Sequence[int]) -> int:
    """The smallest max_tokens with which every listed position can run after each prompt."""
    if isinstance(asked.positions, str):
        return 1
    return max(1, max(asked.positions) - min(prompt_tokens) + 2)


def rows(asked: ActivationRequest, prompt_tokens: Sequence[int], max_tokens: int, n: int) -> int:
    """The most positions that the choices can have together."""
    if not isinstance(asked.positions, str):
        return n * len(asked.positions) * len(prompt_tokens)
    for_each = {ALL: max_tokens - 1, "prompt": 0, "generated": max_tokens - 1, "last": 1}[asked.positions]
    prompts = sum(prompt_tokens) if asked.positions in (ALL, "prompt") else 0
    return n * (prompts + for_each * len(prompt_tokens))


def size(asked: ActivationRequest, card: ModelCard, prompt_tokens: Sequence[int], max_tokens: int, n: int) -> int:
    """The most bytes that the Activations of an answer can have."""
    return len(layers_of(asked, card)) * rows(asked, prompt_tokens, max_tokens, n) * _row_bytes(asked, card)


def check_fit(
    asked: ActivationRequest, card: ModelCard, prompt_tokens: Sequence[int], max_tokens: int, n: int
) -> None:
    """Raises ActivationsTooLarge, with what would fit, or InvalidRequest for positions that can't run."""
    cap, whole = card.activation_max_mb * MIB, size(asked, card, prompt_tokens, max_tokens, n)
    if whole > cap:
        layers, places = len(layers_of(asked, card)), rows(asked, prompt_tokens, max_tokens, n)
        fits = " or ".join(_what_fits(asked, card, prompt_tokens, max_tokens, n)) or "fewer prompts"
        raise ActivationsTooLarge(
            f"These activations are up to {whole} bytes ({layers} Layers × {places} positions × "
            f"{_row_bytes(asked, card)} bytes), and an answer of {card.id!r} holds at most {cap}. "
            f"What would fit: {fits}.", "activations")
    problems = list(check_positions(asked, card, prompt_tokens, max_tokens))
    if problems:
        raise InvalidRequest.of(problems)


def _what_fits(
    asked: ActivationRequest, card: ModelCard, prompt_tokens: Sequence[int], max_tokens: int, n: int
) -> Iterator[str]:
    """Single changes to the request that are enough."""
    cap, row, layers = card.activation_max_mb * MIB, _row_bytes(asked, card), len(layers_of(asked, card))
    places = rows(asked, prompt_tokens, max_tokens, n)
    if fewer := cap // (places * row):
        yield f"{fewer} of the Layers"
    most = cap // (layers * row)  # rows of all choices together
    if asked.positions in (ALL, "generated"):
        prompts = sum(prompt_tokens) if asked.positions == ALL else 0
        tokens = (most // n - prompts) // len(prompt_tokens) + 1
        if tokens >= 1:
            yield f"max_tokens {tokens}"
    choices = n * len(prompt_tokens)
    if asked.positions != "last" and most // choices:
        yield f"{most // choices} positions of each choice"
    if row > 2 * card.hidden_size and layers * places * 2 * card.hidden_size <= cap:
        yield "dtype bfloat16"


def join(
    parts: Sequence[ActivationPart], capture: Capture, card: ModelCard, positions: Sequence[int]
) -> Activations:
    """The parts as one. Raises InferenceError unless every row of `positions` is there: no answer is ever partial."""
    found = Activations(capture.dtype, (len(capture.layers), len(positions), card.hidden_size),
                        tuple(place for part in parts for place in part.positions), tuple(parts))
    whole = all((part.dtype, part.shape) == (found.dtype, (found.shape[0], len(part.positions), found.shape[2]))
                for part in parts)
    if not parts or not whole or found.positions != tuple(positions):
        raise InferenceError(f"Inference returned other Activations of {card.id!r} than were asked for.")
    return found


def _row_bytes(asked: ActivationRequest, card: ModelCard) -> int:
    return card.hidden_size * DTYPE_BYTES[asked.dtype or card.dtype]
