"""Reads the body of a request that must be JSON."""
from __future__ import annotations

from flask import request
from werkzeug.exceptions import RequestEntityTooLarge

from frontend.errors import InvalidRequest


def json_body() -> bytes:
    """The raw body. Raises InvalidRequest for another media type, and 413 beyond the application's limit."""
    if request.mimetype != "application/json":
        raise InvalidRequest("The header Content-Type must be application/json.")
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8"):
        raise InvalidRequest("The body must be UTF-8, and the header Content-Type says another charset.")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidRequest("The body must not be compressed: take the header Content-Encoding out.")
    body = request.get_data(cache=False)
    limit = request.max_content_length
    # Where no length was announced, werkzeug reads up to the limit and no further, without a word.
    if request.content_length is None and len(body) == limit and request.environ["wsgi.input"].read(1):
        raise RequestEntityTooLarge
    return body
