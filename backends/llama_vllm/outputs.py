"""What a choice has to say, as the named tensors of the engine's responses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.llama_vllm.completion import News
from backends.llama_vllm.logprobs import Rows

#: One response: tensor name to array. Strings are UTF-8 bytes in object arrays, as Triton carries them; activations are
#: a tensor of torch, since numpy has no bfloat16.
Message = dict[str, Any]

#: A response holds about this much at most; longer log probabilities are split by rows.
LARGEST_BYTES = 16 * 2**20

#: Where the stub passes tensors to Triton. It grows that memory without asking, and dies when there is none left.
SHARED_MEMORY = "/dev/shm"
#: Responses larger than this are sent only if there is room for them, and this much more.
LARGE_BYTES = 2**20


class NoRoom(Exception):
    """There is too little memory to send an answer; the message is one line for the caller."""


def make_sure_of_room(message: Message, folder: str = SHARED_MEMORY) -> None:
    """Raises NoRoom if a large response would not fit into what is left of shared memory."""
    size = sum(array.nbytes for array in message.values())
    if size > LARGE_BYTES:
        room = os.statvfs(folder)
        if room.f_bavail * room.f_frsize < size + LARGE_BYTES:
            raise NoRoom(f"{folder} has no room for an answer of {size} bytes")


def rows_per_message(row_bytes: int) -> int:
    """How many rows of this size one response takes."""
    return max(1, LARGEST_BYTES // row_bytes)


def prompt_messages(rows: Rows) -> Iterator[Message]:
    """The log probabilities of a prompt: [p-1, k+1] or [p-1, vocab], in as many responses as their size takes."""
    step = rows_per_message(rows.values.itemsize * rows.values.shape[1])
    for start in range(0, len(rows), step):
        part = rows.part(start, start + step)
        message: Message = {"index": _index(0), "prompt_logprobs": part.values, "prompt_logprob_ranks": part.ranks}
        if part.ids is not None:
            message["prompt_logprob_ids"] = part.ids
        yield message


def choice_messages(
    index: int, news: News, rows: Sequence[Rows], finish_reason: str | None, stop_reason: str | int | None
) -> Iterator[Message]:
    """The news of one choice. Rows that would make one response too large go ahead in responses of their own."""
    parts = _split(rows)
    for part in parts[:-1]:
        yield {"index": _index(index), **_row_tensors(part)}
    message: Message = {"index": _index(index)}
    for part in parts[-1:]:
        message.update(_row_tensors(part))
    if news.text:
        message["text"] = _strings([news.text])
    if news.token_ids:
        message["token_ids"] = np.array(news.token_ids, np.int32)
    if news.token_texts:
        message["token_texts"] = _strings(news.token_texts)
    if finish_reason is not None:
        message["finish_reason"] = _strings([finish_reason])
        message["stop_reason"] = _strings([json.dumps(stop_reason)])
    if len(message) > 1:
        yield message


def _split(rows: Sequence[Rows]) -> list[Rows]:
    """Rows regrouped into parts that fit one response each."""
    groups: list[list[Rows]] = []
    size = 0
    for part in rows:
        size += part.values.nbytes
        if not groups or size > LARGEST_BYTES:
            groups.append([])
            size = part.values.nbytes
        groups[-1].append(part)
    return [_joined(group) for group in groups]


def _joined(rows: list[Rows]) -> Rows:
    if len(rows) == 1:
        return rows[0]
    named = [part.ids for part in rows if part.ids is not None]
    return Rows(
        np.concatenate(named) if named else None,
        np.concatenate([part.values for part in rows]),
        np.concatenate([part.ranks for part in rows]),
    )


def _row_tensors(rows: Rows) -> Message:
    tensors: Message = {"logprobs": rows.values, "logprob_ranks": rows.ranks}
    if rows.ids is not None:
        tensors["logprob_ids"] = rows.ids
    return tensors


def _index(index: int) -> npt.NDArray[np.int32]:
    return np.array([index], np.int32)


def _strings(texts: list[str]) -> npt.NDArray[np.object_]:
    return np.array([text.encode() for text in texts], dtype=np.object_)
