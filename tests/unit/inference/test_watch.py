"""Streams are given up when their engine's process is gone, and only then."""
from __future__ import annotations

import time

from frontend.inference.watch import SILENCE, Stream, StreamWatch


def silent(stream: Stream) -> Stream:
    stream.last_word = time.monotonic() - SILENCE - 1
    return stream


def test_only_silent_streams_of_a_dead_engine_are_given_up() -> None:
    asked: list[str] = []
    given_up: list[str] = []

    def alive(model: str, address: str) -> bool:
        asked.append(model)
        return model == "lives"

    watch = StreamWatch(alive)
    on_dead = silent(watch.add("dead", "a:1", lambda: given_up.append("dead")))
    on_living = silent(watch.add("lives", "a:1", lambda: given_up.append("lives")))
    talking = watch.add("dead", "a:1", lambda: given_up.append("talking"))
    removed = silent(watch.add("dead", "a:1", lambda: given_up.append("removed")))
    watch.remove(removed)
    watch.look()
    assert sorted(asked) == ["dead", "lives"]
    assert given_up == ["dead"]
    assert (on_dead.broken, on_living.broken, talking.broken, removed.broken) == (True, False, False, False)
    assert time.monotonic() - on_living.last_word < SILENCE  # asked again only after another silence


def test_only_the_streams_of_the_triton_whose_engine_died_are_given_up() -> None:
    given_up: list[str] = []
    watch = StreamWatch(lambda model, address: address == "lives:1")
    silent(watch.add("model", "lives:1", lambda: given_up.append("lives")))
    silent(watch.add("model", "dead:1", lambda: given_up.append("dead")))
    watch.look()
    assert given_up == ["dead"]


def test_a_word_that_comes_while_the_engine_is_asked_counts() -> None:
    given_up: list[str] = []
    stream: Stream

    def alive(model: str, address: str) -> bool:
        stream.heard()
        return False

    watch = StreamWatch(alive)
    stream = silent(watch.add("replaced", "a:1", lambda: given_up.append("stream")))
    watch.look()
    assert not stream.broken
    assert given_up == []


def test_what_is_due_is_done_when_a_stream_has_not_ended_by_then() -> None:
    done: list[str] = []
    watch = StreamWatch(lambda model, address: True)
    for name, seconds in (("late", 0.0), ("in time", 60.0)):
        watch.add("lives", "a:1", lambda: None).due(seconds, lambda name=name: done.append(name))
    replaced = watch.add("lives", "a:1", lambda: None)
    replaced.due(0.0, lambda: done.append("replaced"))
    replaced.due(60.0, lambda: None)
    watch.add("lives", "a:1", lambda: done.append("stays"))
    watch.look()
    assert done == ["late"]


def test_the_watch_looks_by_itself() -> None:
    given_up: list[str] = []
    watch = StreamWatch(lambda model, address: False)
    silent(watch.add("dead", "a:1", lambda: given_up.append("stream")))
    deadline = time.monotonic() + 10
    while not given_up:
        assert time.monotonic() < deadline
        time.sleep(0.05)
