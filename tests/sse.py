"""Reads a streamed completion and joins it into the answer that the unstreamed request gives."""
from __future__ import annotations

import json
from typing import Any

import httpx

Json = dict[str, Any]


def events(response: httpx.Response) -> list[Json]:
    """The JSON of each event, `[DONE]` excluded; an answer that does not end with it is an error."""
    data = [line[len("data: "):] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert data[-1:] == ["[DONE]"], response.text[-500:]
    return [json.loads(item) for item in data[:-1]]


def join(chunks: list[Json]) -> list[Json]:
    """The choices that the events make together, in order."""
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {**part, "text": "", "logprobs": None, "token_ids": []})
            choice["text"] += part["text"]
            choice["finish_reason"], choice["stop_reason"] = part["finish_reason"], part["stop_reason"]
            choice["token_ids"] = choice["token_ids"] + part.get("token_ids", [])
            if part["logprobs"]:
                joined = choice["logprobs"] or {name: [] for name in part["logprobs"]}
                choice["logprobs"] = {name: joined[name] + part["logprobs"][name] for name in joined}
            if "token_ids" not in part:
                del choice["token_ids"]
    return [choices[index] for index in sorted(choices)]
