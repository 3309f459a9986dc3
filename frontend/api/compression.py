"""Compresses an answer while it is written, in the coding that the client prefers among those we have."""
from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from backports import zstd
from werkzeug.datastructures import Accept

#: The best first. Fast levels: the answers are digits, and what counts is that they arrive.
_CODINGS = ("zstd", "gzip")


def choose(accepted: Accept) -> str | None:
    """The coding to use for a request's Accept-Encoding header, or None for none."""
    return accepted.best_match(_CODINGS) if accepted else None


def compress(parts: Iterable[bytes], coding: str, live: bool = False) -> Iterator[bytes]:
    """The same bytes in `coding`, in parts; `live` parts can each be read as soon as they have come."""
    if coding == "zstd":
        zstandard = zstd.ZstdCompressor(level=1)
        for part in parts:
            packed = zstandard.compress(part)
            if live:
                packed += zstandard.flush(zstd.ZstdCompressor.FLUSH_BLOCK)
            if packed:
                yield packed
        yield zstandard.flush()
        return
    gzip = zlib.compressobj(level=1, wbits=31)  # 31: gzip's header and trailer
    for part in parts:
        if packed := gzip.compress(part) + (gzip.flush(zlib.Z_SYNC_FLUSH) if live else b""):
            yield packed
    yield gzip.flush()
