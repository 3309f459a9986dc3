"""GET /metrics, on an address of its own, which the public one never leads to.

Each worker process answers from a thread of its own, so that the page is there also when requests hold all others.
"""
from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

#: Seconds that a reader may stand still, and seconds to wait for the workers of a frontend that was just killed.
STANDSTILL, PATIENCE = 10, 3.0


class AddressInUse(Exception):
    """The page can't be served where the settings want it."""


def listen(host: str, port: int) -> socket.socket:
    """A socket for the page, to be shared with forked processes. Raises AddressInUse."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=16)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise AddressInUse(f"cannot serve metrics on {host}:{port} ({error.strerror}): set STRATA_METRICS_ADDRESS "
                               "to another address") from None
        listener.setblocking(False)  # several processes wait for one connection, and one gets it
        return listener


def serve(listener: socket.socket, collectors: Iterable[Collector]) -> None:
    """Answer with what the collectors say now, in a thread that ends with the process."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    server = _Server(listener.getsockname()[:2], _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = listener.getsockname()[:2]
    server.setup_environ()
    server.set_app(_only_metrics(make_wsgi_app(registry)))
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def _only_metrics(app: Callable[..., Any]) -> Callable[..., Any]:
    def page(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"GET /metrics is all there is here.\n"]
        return app(environ, start_response)

    return page


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = STANDSTILL

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who reads metrics does so all the time."""
