"""An HTTP client that costs little enough to measure servers beside it: nothing is parsed while bytes come.

On two cores the client competes with the server for CPU, so what it does per streamed event has to be next to nothing.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import httptools

PATH = "/v1/completions"


class BenchmarkError(Exception):
    """The measurement cannot go on; the message is one line."""


@dataclass(frozen=True)
class Target:
    """Where completions are asked for. `headers` come on top of the ones every request has."""

    name: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)

    def request(self, body: bytes) -> bytes:
        """The bytes of one POST."""
        headers = {
            "Host": f"127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {PATH} HTTP/1.1\r\n{lines}\r\n".encode() + body


#: Takes the pieces of an answer's body as they come.
Sink = Callable[[bytes], object]


@dataclass(frozen=True)
class Exchange:
    """One request as its caller saw it; times are of time.perf_counter, in seconds."""

    status: int
    sent: float
    first: float
    last: float

    @property
    def seconds_to_first(self) -> float:
        """From sending to the first bytes of the body: an event when streamed."""
        return self.first - self.sent

    @property
    def seconds(self) -> float:
        """From sending to the end of the answer."""
        return self.last - self.sent


class Connection(asyncio.Protocol):
    """One persistent connection, one request at a time. Reconnects when the server has closed it in between."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._done: asyncio.Future[float] | None = None
        self._sink: Sink = bytes
        self._first = 0.0

    async def post(self, body: bytes, sink: Sink) -> Exchange:
        """Send one request and wait for the whole answer. Raises ConnectionError when it breaks off."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, "127.0.0.1", self._target.port)
        transport, parser = self._transport, httptools.HttpResponseParser(self)
        assert transport is not None
        self._parser, self._sink, self._first = parser, sink, 0.0
        self._done = loop.create_future()
        sent = time.perf_counter()
        transport.write(self._target.request(body))
        last = await self._done
        if not parser.should_keep_alive():
            transport.close()
        return Exchange(parser.get_status_code(), sent, self._first, last)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; uvloop's is no subclass of asyncio's."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls `on_body` and `on_message_complete`."""
        if self._parser is not None:
            self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request in flight, if there is one."""
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"{self._target.name} broke off the connection"))

    # httptools' callbacks

    def on_body(self, body: bytes) -> None:
        """The first piece counts as the first token, unless it is only a comment that keeps a stream alive."""
        if not self._first and not body.startswith(b":"):
            self._first = time.perf_counter()
        self._sink(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._done is not None and not self._done.done():
            self._done.set_result(time.perf_counter())
