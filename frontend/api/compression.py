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


def compress(parts: Iterable[bytes], coding: str) -> Iterator[bytes]:
    """The same bytes in `coding`, in parts."""
    compressor = (zstd.ZstdCompressor(level=1) if coding == "zstd"
                  else zlib.compressobj(level=1, wbits=31))  # 31: gzip's header and trailer
    for part in parts:
        if packed := compressor.compress(part):
            yield packed
    yield compressor.flush()
