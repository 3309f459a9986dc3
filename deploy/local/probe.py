"""Asks a local part whether it works, without threads: the supervisor forks, and a fork must not meet any."""
from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

#: Seconds for one question.
PATIENCE = 5.0


async def http(port: int, path: str, headers: str = "") -> tuple[int, bytes]:
    """GET a path on the loopback interface. Returns status and body; (0, b"") where nothing answers."""

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            # HTTP/1.0, so that the answer ends with the connection.
            writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n".encode())
            return await reader.read()
        finally:
            writer.close()

    head, _, body = (await _patiently(ask())).partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    return (int(words[1]), body) if len(words) > 1 and words[1].isdigit() else (0, b"")


async def answers(port: int, path: str) -> bool:
    """Whether a GET of a path is answered with 200."""
    return (await http(port, path))[0] == 200


async def valkey(socket: Path) -> bool:
    """Whether a Valkey answers PING on a Unix socket."""

    async def ask() -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(socket))
        try:
            writer.write(b"PING\r\n")
            return await reader.readline()
        finally:
            writer.close()

    return (await _patiently(ask())).startswith(b"+PONG")


async def model_states(port: int, key: str) -> dict[str, Any]:
    """What GET /v1/models says of each model's state."""
    status, body = await http(port, "/v1/models", f"Authorization: Bearer {key}\r\n")
    return {model["id"]: model["state"] for model in json.loads(body)["data"]} if status == 200 else {}


async def _patiently(question: Awaitable[bytes]) -> bytes:
    try:
        return await asyncio.wait_for(question, PATIENCE)
    except OSError:  # TimeoutError is one
        return b""
