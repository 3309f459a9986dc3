"""One request in flight: its choices, what of them has been sent, and how it ends.

Everything here runs in the engine's event loop, except that large answers are sent by a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from vllm.v1.engine import FinishReason

from backends.llama_vllm.choice import ChoiceState, Ending
from backends.llama_vllm.completion import News
from backends.llama_vllm.logprobs import WHOLE_VOCABULARY
from backends.llama_vllm.outputs import Message, NoRoom, choice_messages, prompt_messages, rows_per_message
from backends.llama_vllm.recording import Recording
from backends.llama_vllm.sampling import Sampling
from backends.llama_vllm.slab import CaptureFailed

#: Messages larger than this together are sent by a thread: copying them would stop every other stream.
LARGE_BYTES = 2**20


class Failure(Enum):
    """Why a request ended without an answer."""

    INVALID_ARGUMENT = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


class Caller(Protocol):
    """Who asked, and gets the responses. `name` is the id that the request came with, empty if it has none."""

    name: str

    def send(self, message: Message, final: bool) -> None:
        """Sends one response; final closes the request. Raises NoRoom if there is no room to pass it on."""

    def fail(self, failure: Failure, message: str) -> None:
        """Closes the request with an error of one line."""

    def cancelled(self) -> bool:
        """Whether the caller has gone away."""


@dataclass(frozen=True)
class Part:
    """A response to send; with `generated`, the activations of a choice that generated so many tokens go with it."""

    message: Message
    generated: int | None = None


class Delivery:
    """Sends what the choices of one request have to say, in order, as soon as the pace allows.

    The first news go out at once, and so does the end. What comes within `pace()` seconds in between is sent together,
    because the cost of streaming is per response. Prompt log probabilities go before everything else.
    """

    def __init__(
        self,
        caller: Caller,
        sampling: Sampling,
        prompt_tokens: int,
        stream: bool,
        pace: Callable[[], float],
        large_answers: Executor,
        closed: Callable[[Delivery], None],
        recording: Recording | None = None,
    ) -> None:
        self.caller = caller
        self.recording = recording
        self.choices: list[ChoiceState] = []
        self._stream = stream
        self._awaits_prompt_rows = sampling.prompt_logprobs is not None and prompt_tokens > 1
        self._whole_vocabulary = sampling.logprobs == WHOLE_VOCABULARY
        self._pace = pace
        self._large_answers = large_answers
        self._on_closed = closed
        self._loop = asyncio.get_running_loop()
        self._unfinished = sampling.n
        self._reported: set[int] = set()
        self._next_send = 0.0
        self._soon = False
        self._later: asyncio.TimerHandle | None = None
        self._sending = False
        self._failure: tuple[Failure, str] | None = None
        self._cancelled = False
        self.closed = False

    def changed(self) -> None:
        """Something happened to a choice: plans a delivery if there may be something to send."""
        if self._soon or self._sending or self.closed:
            return
        wait = self._next_send - self._loop.time() if self._stream and not self._all_ended() else 0.0
        if wait > 0:
            self._later = self._later or self._loop.call_later(wait, self._deliver)
        elif self._stream or self._has_to_go_now():
            # Not right away: the other choices of this engine step come first.
            self._soon = True
            self._loop.call_soon(self._deliver)

    def cancel(self) -> None:
        """Ends the request because its caller wants that, who is told the tokens that were generated and not sent by
        then: they are to be paid.
        """
        if not self.closed:
            self._cancelled = True
            self.fail(Failure.CANCELLED, "the caller cancelled it")

    def fail(self, failure: Failure, message: str) -> None:
        """Ends the request with an error, unless it has ended already."""
        if self.closed:
            return
        self.closed = True
        self._failure = (failure, message)
        if not self._sending:
            self._close()

    def _all_ended(self) -> bool:
        return all(choice.ending is not None for choice in self.choices)

    def _has_to_go_now(self) -> bool:
        """Whether an answer that is not streamed has a part that is complete."""
        if self._awaits_prompt_rows and self.choices[0].rows.prompt is not None:
            return True
        return any(self._complete(choice) for choice in self.choices if choice.request_index not in self._reported)

    def _complete(self, choice: ChoiceState) -> bool:
        if choice.ending is not None:
            return True
        if not self._whole_vocabulary or not choice.rows.generated:
            return False
        row_bytes = choice.rows.generated[0].values.nbytes
        return len(choice.rows.generated) >= rows_per_message(row_bytes)

    def _deliver(self) -> None:
        self._soon = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._sending or self.closed:
            return
        broken = [choice.ending.reason for choice in self.choices if choice.ending and not _answers(choice.ending)]
        if broken:
            self.fail(Failure.INTERNAL, f"the engine gave up on the request: {broken[0]}")
            return
        parts = self._collect()
        if not parts:
            return
        self._next_send = self._loop.time() + self._pace()
        if self._is_large(parts):
            self._sending = True
            sent = self._loop.run_in_executor(self._large_answers, self._send, parts)
            sent.add_done_callback(self._large_sent)
            return
        try:
            self._send(parts)
        except Exception as error:
            self.fail(*_why_not_sent(error))
        else:
            self._after_sending()

    def _is_large(self, parts: list[Part]) -> bool:
        """Whether sending these takes long. Activations may have to be waited for."""
        size = sum(array.nbytes for part in parts for array in part.message.values())
        return size > LARGE_BYTES or any(part.generated is not None for part in parts)

    def _collect(self) -> list[Part]:
        parts: list[Part] = []
        if self._awaits_prompt_rows:
            rows = self.choices[0].rows.prompt
            if rows is None:
                return parts
            self._awaits_prompt_rows = False
            self.choices[0].rows.prompt = None
            parts += map(Part, prompt_messages(rows))
        for choice in self.choices:
            if choice.request_index in self._reported:
                continue
            if self._stream or choice.ending is not None:
                parts += self._news(choice)
            elif self._complete(choice):
                rows_ahead, choice.rows.generated = choice.rows.generated, []
                parts += map(Part, choice_messages(choice.request_index, News(), rows_ahead, None, None))
        return parts

    def _news(self, choice: ChoiceState) -> list[Part]:
        ending = choice.ending
        if ending is None:
            finish_reason = stop_reason = None
        else:
            finish_reason, stop_reason = str(ending.reason), ending.stop_reason
            self._reported.add(choice.request_index)
            self._unfinished -= 1
        rows, choice.rows.generated = choice.rows.generated, []
        news = choice.completion.take(finished=ending is not None)
        generated = choice.completion.num_output_tokens() if ending is not None and self.recording else None
        messages = list(choice_messages(choice.request_index, news, rows, finish_reason, stop_reason))
        return [*map(Part, messages[:-1]), *(Part(message, generated) for message in messages[-1:])]

    def _send(self, parts: list[Part]) -> bool:
        """Sends in order, freeing each part once it is sent; whether the last one closed the request."""
        final = self._unfinished == 0
        parts.reverse()
        while parts:
            part = parts.pop()
            for message, last in self._messages(part):
                if self._failure is not None:
                    return False
                self.caller.send(message, final=final and last and not parts)
        return final

    def _messages(self, part: Part) -> Iterator[tuple[Message, bool]]:
        """The responses of a part, and of each whether it is the last."""
        if part.generated is None or self.recording is None:
            yield part.message, True
            return
        index = part.message["index"]
        for tensors, last in self.recording.read(int(index[0]), part.generated):
            yield (part.message if last else {"index": index}) | tensors, last

    def _large_sent(self, sent: asyncio.Future[bool]) -> None:
        self._sending = False
        if error := sent.exception():
            self._failure = self._failure or _why_not_sent(error)
            self.closed = True
            self._close()
        elif self._failure is not None:
            if sent.result():
                self._failure = None
            self._close()
        else:
            self._after_sending()
            self.changed()

    def _after_sending(self) -> None:
        if self._unfinished == 0:
            self.closed = True
            self._close()

    def _close(self) -> None:
        try:
            if self._failure is not None:
                try:
                    if self._cancelled:
                        self._tell_tokens()
                finally:
                    self.caller.fail(*self._failure)
        finally:
            self._on_closed(self)

    def _tell_tokens(self) -> None:
        for choice in self.choices:
            if choice.request_index not in self._reported:
                news = News(token_ids=choice.completion.take(finished=False).token_ids)
                for message in choice_messages(choice.request_index, news, (), None, None):
                    self.caller.send(message, final=False)


def _answers(ending: Ending) -> bool:
    return ending.reason in (FinishReason.STOP, FinishReason.LENGTH)


def _why_not_sent(error: BaseException) -> tuple[Failure, str]:
    if isinstance(error, NoRoom):
        return Failure.UNAVAILABLE, str(error)
    if isinstance(error, CaptureFailed):
        return Failure.INTERNAL, str(error)
    return Failure.INTERNAL, f"the answer could not be sent: {error}".splitlines()[0]
