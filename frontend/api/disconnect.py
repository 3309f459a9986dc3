"""Clients that go away: noticed while their requests still wait for the engine, and given up when they stand still.

A write to a closed socket fails by itself; before the first token, or in an unstreamed answer, there is none for
minutes. One thread for each process watches the sockets of the running requests for a hang-up.
"""
from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog

_log = structlog.get_logger(__name__)
#: Seconds that a client may neither send what it announced nor read what it gets. It holds a thread meanwhile.
STANDSTILL = 60
_HANG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


def bound_standstill(environ: dict[str, Any], seconds: int = STANDSTILL) -> None:
    """Let each read from and write to a request's connection fail (OSError) after so many seconds without progress."""
    connection = environ.get("gunicorn.socket")
    if connection is not None:
        limit = struct.pack("ll", seconds, 0)  # struct timeval
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class DisconnectWatcher:
    """Calls a request's `on_gone` once when its client hangs up; a client that only ends its sending counts as gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._on_gone: dict[int, Callable[[], object]] = {}

    @contextmanager
    def watch(self, environ: dict[str, Any], on_gone: Callable[[], object]) -> Iterator[None]:
        """Watch the connection of a WSGI request for as long as the block runs."""
        connection = environ.get("gunicorn.socket")
        if connection is None:  # another WSGI server: writes will tell
            yield
            return
        descriptor = connection.fileno()
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._run, args=(self._epoll,), name="disconnects", daemon=True).start()
            self._epoll.register(descriptor, _HANG_UP | select.EPOLLONESHOT)
            self._on_gone[descriptor] = on_gone
        try:
            yield
        finally:
            with self._lock:
                self._on_gone.pop(descriptor, None)
                with suppress(OSError):  # the server closed it meanwhile, which unregisters it
                    self._epoll.unregister(descriptor)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for descriptor, _ in epoll.poll():
                with self._lock:
                    # Asked again, since the number may have become another connection's meanwhile.
                    on_gone = self._on_gone.pop(descriptor, None) if _has_hung_up(descriptor) else None
                if on_gone is not None:
                    try:
                        on_gone()
                    except Exception as error:
                        _log.error("could not cancel", exc_info=error)


def _has_hung_up(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
