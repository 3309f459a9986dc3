"""How many completion tokens a caller's tokens allow each choice of a request."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """What a request could use: its prompts once, and `max_tokens` for each of its `choices` (prompts × n).

    `least` is the smallest max_tokens that makes sense for it: 1, or more where it asks for more than one.
    """

    prompt_tokens: int
    choices: int
    max_tokens: int
    least: int = 1

    def total(self, max_tokens: int) -> int:
        """The tokens to hold at some max_tokens."""
        return self.prompt_tokens + self.choices * max_tokens

    def fit(self, available: int) -> int | None:
        """The largest max_tokens up to the one asked for that fits every choice; None where not even `least` does."""
        most = min(self.max_tokens, (available - self.prompt_tokens) // self.choices)
        return most if most >= self.least else None
