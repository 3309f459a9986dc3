"""Reads a streamed completion and joins it into the answer that the unstreamed request gives."""
from __future__ import annotations

import json
from typing import Any

import httpx

Json = dict[str, Any]


def events(response: httpx.Response) -> list[Json]:
    """The JSON of each event of an answer."""
    return parse(response.text)


def parse(text: str) -> list[Json]:
    """The JSON of each event, `[DONE]` excluded; a text that does not end with it is an error."""
    data = [line[len("data: "):] for line in text.split("\n\n") if line.startswith("data: ")]
    assert data[-1:] == ["[DONE]"], text[-500:]
    return [json.loads(item) for item in data[:-1]]


def join(chunks: list[Json]) -> list[Json]:
    """The choices that the events make together, in order."""
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            if part["index"] not in choices:
                choices[part["index"]] = part
                continue
            choice = choices[part["index"]]
            choice["text"] += part["text"]
            choice["finish_reason"], choice["stop_reason"] = part["finish_reason"], part["stop_reason"]
            if "activations" in part:
                choice["activations"] = part["activations"]
            if "token_ids" in part:
                choice["token_ids"] += part["token_ids"]
            for name, values in (part["logprobs"] or {}).items():
                choice["logprobs"][name] += values
    return [choices[index] for index in sorted(choices)]
