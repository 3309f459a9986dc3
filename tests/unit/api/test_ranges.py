"""A range of a file's bytes, as RFC 9110 has it."""
from __future__ import annotations

import pytest
from flask import Flask

from frontend.api.ranges import ranged

CONTENT = b"0123456789"


@pytest.mark.parametrize(("header", "status", "body"), [
    (None, 200, CONTENT), ("bytes=2-4", 206, b"234"), ("bytes=7-", 206, b"789"), ("bytes=-3", 206, b"789"),
    ("bytes=8-99", 206, b"89"), ("bytes=-10", 206, CONTENT), ("bytes=-99", 206, CONTENT), ("bytes=10-", 416, b""),
    ("bytes=0-1,3-4", 200, CONTENT), ("lines=1-2", 200, CONTENT), ("bytes=x", 200, CONTENT),
])
def test_ranges(header: str | None, status: int, body: bytes) -> None:
    with Flask("test").test_request_context(headers={"Range": header} if header else {}):
        answer = ranged(len(CONTENT), "text/plain", '"a"', lambda start, end: iter([CONTENT[start:end]]))
    assert (answer.status_code, answer.get_data()) == (status, body)
    if status == 206:
        start = CONTENT.index(body)
        assert answer.headers["Content-Range"] == f"bytes {start}-{start + len(body) - 1}/10"
    if status == 416:
        assert answer.headers["Content-Range"] == "bytes */10"
