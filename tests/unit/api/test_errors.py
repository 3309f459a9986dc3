"""Every answer that is not a 2xx has OpenAI's shape, its status, and a request id; a bug shows nothing of itself."""
from __future__ import annotations

import io
import re
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from frontend import errors
from frontend.errors import ApiError
from frontend.schemas.answers import ErrorSchema

COMPLETIONS = "/v1/completions"


def error_of(answer: TestResponse, status: int) -> dict[str, Any]:
    assert answer.status_code == status
    assert answer.content_type == "application/json"
    assert re.fullmatch(r"req_[0-9A-Za-z]{24}", answer.headers["x-request-id"])
    body = answer.get_json()
    ErrorSchema().load(body)
    error = body["error"]
    assert isinstance(error, dict)
    return error


def test_unknown_path(client: FlaskClient) -> None:
    for path in ("/nothing", "/v1", "/v1/nothing", "/v1/models/", "/v1/completions/", "/v1//models",
                 "/V1/models", "/v1/completions%00", "/%ff"):
        for method in ("GET", "POST", "DELETE"):
            error = error_of(client.open(path, method=method), 404)
            assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("GET", COMPLETIONS, "POST"), ("PUT", COMPLETIONS, "POST"), ("POST", "/v1/models", "GET"),
    ("DELETE", "/v1/models/tiny-llama", "GET"), ("GET", "/v1/chat/completions", "POST"), ("POST", "/healthz", "GET"),
    ("PATCH", "/v1/tokenize", "POST"), ("TRACE", "/v1/detokenize", "POST"), ("POST", "/openapi.json", "GET"),
    ("BREW", "/readyz", "GET"),
])
def test_another_method(client: FlaskClient, method: str, path: str, allowed: str) -> None:
    answer = client.open(path, method=method)
    error = error_of(answer, 405)
    assert (error["type"], error["code"]) == ("invalid_request_error", "method_not_allowed")
    assert allowed in answer.headers["Allow"].split(", ")


def test_head_and_options(anonymous: FlaskClient) -> None:
    head = anonymous.head("/healthz")
    assert (head.status_code, head.data) == (200, b"")
    options = anonymous.options(COMPLETIONS)
    assert options.status_code == 200
    assert set(options.headers["Allow"].split(", ")) == {"OPTIONS", "POST"}


def test_a_body_that_is_too_large(client: FlaskClient) -> None:
    for path in (COMPLETIONS, "/v1/tokenize", "/v1/detokenize"):
        error = error_of(client.post(path, data=b" " * (2**20 + 1), content_type="application/json"), 413)
        assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
        assert "1 MB" in error["message"]


def test_a_body_that_is_too_large_and_comes_in_chunks(client: FlaskClient) -> None:
    def post(size: int) -> TestResponse:
        return client.post(COMPLETIONS, input_stream=io.BytesIO(b"{}".ljust(size)), content_type="application/json",
                           headers={"Transfer-Encoding": "chunked"}, environ_overrides={"wsgi.input_terminated": True})

    assert error_of(post(2**20), 400)["param"] == "model"
    assert error_of(post(2**20 + 1), 413)["code"] == "request_too_large"


class BrokenConnection(io.RawIOBase):
    """A body whose sender has gone."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        raise ConnectionResetError


def test_a_body_that_breaks_off(client: FlaskClient) -> None:
    environ = {"wsgi.input": BrokenConnection(), "wsgi.input_terminated": True}
    answer = client.post(COMPLETIONS, content_type="application/json", headers={"Transfer-Encoding": "chunked"},
                         environ_overrides=environ)
    assert error_of(answer, 400)["code"] == "invalid_request"


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/tokenize"])
def test_a_body_that_breaks_off_where_it_looks_whole(client: FlaskClient, path: str) -> None:
    answer = client.post(path, input_stream=io.BytesIO(b"{}"), content_type="application/json",
                         environ_overrides={"wsgi.input_terminated": True, "CONTENT_LENGTH": "3"})
    assert error_of(answer, 400)["message"] == "The body broke off: Content-Length says 3 bytes, 2 came."


def test_a_refused_body_is_read_all_the_same_so_that_its_sender_sees_the_answer(client: FlaskClient) -> None:
    for path, size in (("/nothing", 10_000), (COMPLETIONS, 2**20 + 1), ("/v1/chat/completions", 2**21)):
        body = io.BytesIO(b" " * size)
        answer = client.post(path, input_stream=body, content_length=size, content_type="application/json",
                             environ_overrides={"wsgi.input_terminated": True})
        assert answer.status_code in (400, 404, 413)
        assert body.tell() == size


@pytest.mark.parametrize("headers", [
    {}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "application/jsonl"}, {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Type": "application/json; charset=utf-16"},
    {"Content-Type": "application/json", "Content-Encoding": "gzip"},
], ids=str)
def test_a_body_that_is_not_plain_json(client: FlaskClient, headers: dict[str, str]) -> None:
    error = error_of(client.post(COMPLETIONS, data=b"{}", headers=headers), 400)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert "Content-" in error["message"]


def test_json_may_name_its_charset(client: FlaskClient) -> None:
    answer = client.post(COMPLETIONS, data=b"{}", content_type="Application/JSON; charset=UTF-8")
    assert error_of(answer, 400)["param"] == "model"


@pytest.mark.parametrize("body", [b"", b"{", b'{"a":1,"a":2}', b'{"model":"\\ud800"}', b"\xff", b'{"\\ud800":1}'])
def test_a_body_that_is_no_strict_json(client: FlaskClient, body: bytes) -> None:
    for path in (COMPLETIONS, "/v1/tokenize", "/v1/detokenize"):
        error = error_of(client.post(path, data=body, content_type="application/json"), 400)
        assert (error["type"], error["code"]) == ("invalid_request_error", "bad_json")


def test_every_problem_is_listed(client: FlaskClient) -> None:
    error = error_of(client.post(COMPLETIONS, json={"model": "m", "prompt": [], "temprature": 1, "n": 0}), 400)
    assert [detail["param"] for detail in error["details"]] == ["temprature", "prompt", "n"]
    assert (error["param"], error["message"]) == ("temprature", error["details"][0]["message"])


def test_a_part_that_is_down(client: FlaskClient) -> None:
    for answer in (client.get("/v1/models"), client.get("/v1/models/tiny-llama"),
                   client.post(COMPLETIONS, json={"model": "tiny-llama", "prompt": "x"}),
                   client.post("/v1/tokenize", json={"model": "tiny-llama", "prompt": "x"}),
                   client.post("/v1/detokenize", json={"model": "tiny-llama", "tokens": [1]})):
        error = error_of(answer, 503)
        assert (error["type"], error["code"]) == ("server_error", "unavailable")
        assert int(answer.headers["Retry-After"]) > 0


def test_a_bug_is_logged_with_the_request_id_and_not_shown(capsys: pytest.CaptureFixture[str], app: Flask) -> None:
    @app.get("/bug")
    def bug() -> None:
        raise RuntimeError("a prompt that must not be seen")

    answer = app.test_client().get("/bug", buffered=True)
    error = error_of(answer, 500)
    assert (error["type"], error["code"], error["param"]) == ("server_error", "internal_error", None)
    logged = capsys.readouterr().err
    assert "RuntimeError" in logged
    assert answer.headers["x-request-id"] in logged
    assert "must not be seen" not in logged + answer.text


def test_every_request_has_its_own_id_whatever_the_caller_sends(anonymous: FlaskClient) -> None:
    ids = {anonymous.get("/healthz", headers={"x-request-id": "mine"}).headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20
    assert "mine" not in ids


def test_the_table_of_errors() -> None:
    table = {(kind.status, kind.type, kind.code) for kind in vars(errors).values()
             if isinstance(kind, type) and issubclass(kind, ApiError) and kind is not ApiError}
    assert {
        (400, "invalid_request_error", "invalid_request"), (400, "invalid_request_error", "bad_json"),
        (400, "invalid_request_error", "context_length_exceeded"),
        (400, "invalid_request_error", "full_vocab_too_large"),
        (401, "authentication_error", "invalid_api_key"), (403, "permission_error", "missing_scope"),
        (404, "invalid_request_error", "model_not_found"), (404, "invalid_request_error", "not_found"),
        (405, "invalid_request_error", "method_not_allowed"), (413, "invalid_request_error", "request_too_large"),
        (500, "server_error", "internal_error"), (502, "server_error", "inference_error"),
        (503, "server_error", "model_unavailable"), (503, "server_error", "unavailable"),
        (504, "server_error", "timeout"),
    } <= table
