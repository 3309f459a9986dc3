"""What is read while it is sent takes one of its person's threads until it has ended, or the client has left."""
from __future__ import annotations

import pytest
from flask import Flask, Response

from frontend.api.jobs import sent
from frontend.api.parts import parts
from frontend.errors import NotFound, RateLimited


def fail() -> Response:
    raise NotFound("no such file")


def test_a_download_holds_a_thread(app: Flask) -> None:
    with app.test_request_context():
        share = parts().settings.threads // 2
        answers = [sent("ada", lambda: Response(iter([b"x"]))) for _ in range(share)]
        with pytest.raises(RateLimited):
            sent("ada", fail)
        answers.pop().close()
        for _ in range(2):  # the second has the share that the first let go
            with pytest.raises(NotFound):
                sent("ada", fail)
