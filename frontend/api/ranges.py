"""Ranges of bytes (RFC 9110, section 14): one range, as download tools ask for to go on where they were cut off."""
from __future__ import annotations

from collections.abc import Callable, Iterator

from flask import Response, request
from werkzeug.http import parse_range_header

#: Gives the bytes from a start up to an end.
Read = Callable[[int, int], Iterator[bytes]]


def ranged(size: int, content_type: str, etag: str, read: Read) -> Response:
    """The range that the request asks for of `size` bytes, or all of them. 416 for one that begins beyond the end."""
    start, end, status = 0, size, 200
    asked = parse_range_header(request.headers.get("Range"))
    if asked is not None and asked.units == "bytes" and len(asked.ranges) == 1 and _unchanged(etag):
        first, last = asked.ranges[0]
        # The last so many bytes of a shorter file are all of it, which werkzeug would refuse.
        found = (0, size) if last is None and first <= -size else asked.range_for_length(size)
        if found is None:
            return Response(status=416, headers={"Content-Range": f"bytes */{size}", "Accept-Ranges": "bytes"})
        start, end, status = found[0], found[1], 206
    answer = Response(read(start, end), status, content_type=content_type)
    answer.headers.update({"Content-Length": str(end - start), "Accept-Ranges": "bytes", "ETag": etag})
    if status == 206:
        answer.headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return answer


def _unchanged(etag: str) -> bool:
    """Whether the file is the one that the client has a part of."""
    return request.headers.get("If-Range", etag) == etag
