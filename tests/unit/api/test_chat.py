"""Chat is refused, with one message, whoever asks and whatever they send."""
from __future__ import annotations

import pytest
from flask.testing import FlaskClient

MESSAGE = (
    "This API serves Base models, which have no chat format: send POST /v1/completions with a prompt instead of POST "
    "/v1/chat/completions with messages."
)


@pytest.mark.parametrize("body", [
    b"", b"{", b"\xff", b"x" * (2**20 + 1), b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'], ids=len)
@pytest.mark.parametrize("headers", [
    {}, {"Content-Type": "application/json"}, {"Authorization": "Bearer nonsense"}], ids=str)
def test_refused(anonymous: FlaskClient, client: FlaskClient, body: bytes, headers: dict[str, str]) -> None:
    for caller in (anonymous, client):
        answer = caller.post("/v1/chat/completions", data=body, headers=headers)
        error = answer.get_json()["error"]
        assert answer.status_code == 400
        assert (error["type"], error["code"], error["message"]) == ("invalid_request_error", "invalid_request", MESSAGE)
