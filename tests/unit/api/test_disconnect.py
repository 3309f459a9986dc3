"""A client that hangs up is noticed once; one that stands still is given up."""
from __future__ import annotations

import socket
import threading
import time

import pytest

from frontend.api.disconnect import DisconnectWatcher, bound_standstill


def test_a_hang_up_is_noticed_while_the_block_runs() -> None:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    with ours, DisconnectWatcher().watch({"gunicorn.socket": ours}, gone.set):
        assert not gone.wait(0.2)
        theirs.close()
        assert gone.wait(5)


def test_nothing_is_watched_after_the_block() -> None:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    with DisconnectWatcher().watch({"gunicorn.socket": ours}, gone.set):
        pass
    theirs.close()
    assert not gone.wait(0.3)
    ours.close()


def test_a_watcher_survives_what_a_callback_raises() -> None:
    watcher = DisconnectWatcher()
    for callback_fails in (True, False):
        ours, theirs = socket.socketpair()
        gone = threading.Event()

        def on_gone(fails: bool = callback_fails, gone: threading.Event = gone) -> None:
            gone.set()
            if fails:
                raise RuntimeError("it could not be cancelled")

        with ours, watcher.watch({"gunicorn.socket": ours}, on_gone):
            theirs.close()
            assert gone.wait(5)


def test_another_server_is_left_alone() -> None:
    with DisconnectWatcher().watch({}, lambda: pytest.fail("nobody left")):
        bound_standstill({})


def test_a_connection_that_stands_still_fails() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        bound_standstill({"gunicorn.socket": ours}, seconds=1)
        started = time.monotonic()
        with pytest.raises(OSError, match="unavailable"):
            ours.recv(1)
        with pytest.raises(OSError, match="unavailable"):
            ours.sendall(b"x" * 10_000_000)
        assert time.monotonic() - started >= 1.9
