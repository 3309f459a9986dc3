"""The bytes of an answer: one JSON object, server-sent events, or a safetensors file, as the HTTP contract has them."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from frontend.completions.activations import Activations
from frontend.completions.choices import Choice, Piece
from frontend.completions.logprobs import TokenNames, render_prompt_logprobs
from frontend.completions.plan import Plan
from frontend.completions.tensor_file import TensorFile


@dataclass(frozen=True)
class Usage:
    """Tokens of a request: a prompt counts once, completions over all choices."""

    prompt_tokens: int
    completion_tokens: int

    def body(self) -> dict[str, int]:
        """OpenAI's shape."""
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens,
                "total_tokens": self.prompt_tokens + self.completion_tokens}


#: Says where a choice's Activations are: members of the object that describes them.
Elsewhere = Callable[[Choice], dict[str, str]]


@dataclass(frozen=True)
class Answer:
    """What all parts of one answer share."""

    id: str
    created: int
    plan: Plan
    names: TokenNames | None

    def body(
        self, choices: list[tuple[Choice, Piece]], usage: Usage, elsewhere: Elsewhere | None = None
    ) -> Iterator[bytes]:
        """The unstreamed answer in parts. `elsewhere`: the Activations are not in it but there."""
        yield self._head() + b',"choices":['
        for number, (choice, piece) in enumerate(choices):
            yield b"," * bool(number)
            yield from self._choice(choice, piece, first=True)
            yield from self._activations(choice, piece, elsewhere)
            yield b"}"
        yield self._tail(usage)

    def file(self, choice: Choice, piece: Piece, activations: Activations, usage: Usage) -> TensorFile:
        """The unstreamed answer of a single choice as a file of its Activations, with all else in the metadata."""
        head = orjson.dumps(self.described(choice, activations))
        completion = b"".join((
            self._head(), b',"choices":[', *self._choice(choice, piece, first=True), b',"activations":', head, b"}",
            self._tail(usage)))
        return TensorFile.of(activations, self.metadata(choice, activations) | {"completion": completion.decode()})

    def event(self, choice: Choice, piece: Piece, first: bool) -> Iterator[bytes]:
        """One event of a stream, in parts; `first` is the choice's first."""
        yield b"data: " + self._head() + b',"choices":['
        yield from self._choice(choice, piece, first)
        yield from self._activations(choice, piece)
        yield b"}]" + (b',"usage":null' if self.plan.request.include_usage else b"") + b"}\n\n"

    def usage_event(self, usage: Usage) -> bytes:
        """The last chunk of a stream that asked for its usage."""
        return b"data: " + self._head() + b',"choices":[],"usage":' + orjson.dumps(usage.body()) + b"}\n\n"

    def _head(self) -> bytes:
        return orjson.dumps({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.plan.request.model,
            "system_fingerprint": self.plan.card.fingerprint,
        })[:-1]

    @staticmethod
    def _tail(usage: Usage) -> bytes:
        return b'],"usage":' + orjson.dumps(usage.body()) + b"}"

    def _choice(self, choice: Choice, piece: Piece, first: bool) -> Iterator[bytes]:
        """A choice up to its Activations, which are its last member: the object is left open."""
        request = self.plan.request
        members: dict[str, Any] = {"index": choice.index, "text": piece.text, "finish_reason": piece.finish_reason,
                                   "stop_reason": piece.stop_reason}
        if request.return_token_ids:
            members["token_ids"] = piece.token_ids
            if first:
                members["prompt_token_ids"] = choice.prompt.ids
        yield orjson.dumps(members)[:-1] + b',"logprobs":'
        if piece.logprobs is None:
            yield b"null"
        else:
            yield from piece.logprobs.render()
        k = request.sampling.prompt_logprobs
        if k is not None and first and self.names is not None:
            yield b',"prompt_logprobs":'
            yield from render_prompt_logprobs(choice.prompt_rows, choice.prompt.ids, k, self.names)

    def _activations(self, choice: Choice, piece: Piece, elsewhere: Elsewhere | None = None) -> Iterator[bytes]:
        if piece.activations is None:
            return
        if elsewhere is not None:
            yield b',"activations":' + orjson.dumps(self.described(choice, piece.activations) | elsewhere(choice))
            return
        members = self.described(choice, piece.activations) | {"encoding": "base64"}
        yield b',"activations":' + orjson.dumps(members)[:-1] + b',"data":"'
        yield from TensorFile.of(piece.activations, self.metadata(choice, piece.activations)).base64()
        yield b'"}'

    @staticmethod
    def described(choice: Choice, activations: Activations) -> dict[str, Any]:
        """What the numbers are. Positions that were asked for by a word are one span."""
        ran = choice.positions
        return {
            "layers": choice.layers, "positions": [ran.start, ran.stop] if isinstance(ran, range) else ran,
            "shape": activations.shape, "dtype": activations.dtype, "format": "safetensors",
        }

    def metadata(self, choice: Choice, activations: Activations) -> dict[str, str]:
        """Makes a file that is kept mean something by itself, so it names each position."""
        return {
            "model": self.plan.request.model, "fingerprint": self.plan.card.fingerprint,
            "layers": orjson.dumps(choice.layers).decode(), "positions": orjson.dumps(activations.positions).decode(),
        }
