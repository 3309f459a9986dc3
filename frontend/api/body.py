"""Reads the body of a request that must be JSON, and gets rid of one that is refused unread."""
from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from flask import request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from frontend.errors import InvalidRequest

_PART = 2**18


def json_body() -> bytes:
    """The raw body. Raises InvalidRequest for another media type, and 413 beyond the application's limit."""
    if request.mimetype != "application/json":
        raise InvalidRequest("The header Content-Type must be application/json.")
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8"):
        raise InvalidRequest("The body must be UTF-8, and the header Content-Type says another charset.")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidRequest("The body must not be compressed: take the header Content-Encoding out.")
    try:
        body = request.get_data(cache=False)
    except HTTPException:
        raise
    except Exception as error:  # each WSGI server has its own for a broken chunk or connection
        raise InvalidRequest("The body broke off or is not valid HTTP.") from error
    _check_length(len(body))
    return body


@contextmanager
def spooled_body(limit: int) -> Iterator[IO[bytes]]:
    """The body in a file, so that it takes no memory. Raises 413 beyond `limit`, InvalidRequest where it breaks off."""
    request.max_content_length = limit
    if request.content_length is not None and request.content_length > limit:
        raise RequestEntityTooLarge
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidRequest("The body must not be compressed: take the header Content-Encoding out.")
    with tempfile.TemporaryFile() as file:
        try:
            shutil.copyfileobj(request.stream, file, _PART)
        except HTTPException:
            raise
        except Exception as error:  # each WSGI server has its own for a broken chunk or connection
            if is_full(error):
                raise
            raise InvalidRequest("The body broke off or is not valid HTTP.") from error
        _check_length(file.tell())
        file.flush()
        yield file


def _check_length(read: int) -> None:
    """Raise InvalidRequest where less came than was announced: what is there may look whole. Raise 413 where no length
    was announced and there is more: werkzeug reads up to the limit and no further, without a word.
    """
    announced = request.content_length
    if announced is None:
        if read == request.max_content_length and request.environ["wsgi.input"].read(1):
            raise RequestEntityTooLarge
    elif read < announced:
        raise InvalidRequest(f"The body broke off: Content-Length says {announced} bytes, {read} came.")


def is_full(error: Exception) -> bool:
    """Whether there was no room on the disk, which is no fault of a body."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def discard_body(max_body_bytes: int) -> None:
    """Read what is left of the body, up to four times the limit, before a request is refused.

    Most clients send the whole body before they look at the answer: where the server closes the connection first, they
    see a broken pipe and not why they were refused.
    """
    if request.environ.get("wsgi.input_terminated"):
        stream, left = request.environ["wsgi.input"], 4 * max_body_bytes
        with suppress(Exception):  # what can't be read needs no discarding
            while left > 0 and (part := stream.read(min(left, _PART))):
                left -= len(part)
