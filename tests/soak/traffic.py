"""The soak's requests: completions, streams, captures and breaks, by several people, to two models."""
from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests.soak.people import Person

#: The two models of a small machine: the one is always Warm, the other comes and goes.
STEADY, CHANGING = "tiny-llama", "smollm2-135m"
#: How requests may end without anybody asking why: answers, and what the soak does to them itself.
EXPECTED = {"answered", "broken off"}
#: The kinds of answers that there must be some of; one answer may be of several.
KINDS = {"whole", "streamed", "captured", CHANGING}


@dataclass
class Seen:
    """How requests ended, and what answers said they used, by the request's id."""

    outcomes: Counter[str] = field(default_factory=Counter)
    used: dict[str, tuple[int, int]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, outcome: str) -> None:
        """A request has ended."""
        with self.lock:
            self.outcomes[outcome] += 1

    def answered(self, asked: dict[str, object], request_id: str, usage: dict[str, int] | None) -> None:
        """A request has been answered to its end."""
        self.note("answered" if usage else "answered without usage")
        with self.lock:
            if usage is not None:
                self.used[request_id] = usage["prompt_tokens"], usage["completion_tokens"]
            self.kinds.update(kind for kind, is_one in (
                ("streamed" if asked.get("stream") else "whole", True), ("captured", "activations" in asked),
                (CHANGING, asked["model"] == CHANGING)) if is_one)


def body(chance: random.Random) -> dict[str, object]:
    """A request of any kind."""
    # Nobody asks for the changing model half of the time, so that it can be unloaded.
    model = CHANGING if chance.random() < 0.1 and time.monotonic() % 60 < 30 else STEADY
    asked: dict[str, object] = {
        "model": model, "prompt": f"Number {chance.randrange(1000)} is", "ignore_eos": True,
        "max_tokens": chance.choice([1, 4, 16, 64]) if model == STEADY else 4, "n": chance.choice([1, 1, 1, 2]),
        "logprobs": chance.choice([None, None, 3]), "echo": chance.random() < 0.1}
    if chance.random() < 0.25:
        asked["activations"] = {"layers": chance.choice(["all", [0], ["embedding", 3, "final_norm"]]),
                                "positions": chance.choice(["all", "prompt", "last"])}
    if chance.random() < 0.5:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked


def one(person: Person, seen: Seen, chance: random.Random) -> None:
    """One request from its beginning to its end, or to where its client leaves."""
    asked, breaks = body(chance), chance.random() < 0.1
    if breaks:
        asked |= {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 200, "model": STEADY}
    try:
        with person.client.stream("POST", "/v1/completions", json=asked) as answer:
            request_id = answer.headers.get("x-request-id", "")
            if answer.status_code != 200:
                seen.note(f"{answer.status_code} {json.loads(answer.read())['error']['code']}")
            elif not asked.get("stream"):
                seen.answered(asked, request_id, json.loads(answer.read())["usage"])
            else:
                _follow(answer, seen, asked, request_id, chance.choice([0, 1, 8]) if breaks else None)
    except httpx.HTTPError as error:
        seen.note(type(error).__name__)


def _follow(
    answer: httpx.Response, seen: Seen, asked: dict[str, object], request_id: str, leave_after: int | None
) -> None:
    usage: dict[str, int] | None = None
    events = 0
    for line in answer.iter_lines():
        if leave_after is not None and events >= leave_after:
            seen.note("broken off")
            return
        if line == "data: [DONE]":
            seen.answered(asked, request_id, usage)
            return
        if line.startswith("data: "):
            events += 1
            event = json.loads(line[6:])
            if "error" in event:
                seen.note(f"event {event['error']['code']}")
                return
            usage = event["usage"] or usage
    seen.note("cut off")
