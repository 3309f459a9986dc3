"""What a database can't hold or look for is refused by name, and is no bug: PostgreSQL's strings have no U+0000."""
from __future__ import annotations

import io

import pytest
from flask.testing import FlaskClient


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, database_url: str) -> str:
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgresql" else database_url


@pytest.mark.parametrize("path", [
    "/v1/jobs/a%00b", "/v1/jobs/a%00b/results", "/v1/jobs/a/activations/x%00", "/v1/files/file-%00",
    "/v1/batches/batch_%00", "/v1/files/file-output-%00/content",
])
def test_no_id_has_it(client: FlaskClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/v1/jobs?after=%00", "/v1/files?after=%00", "/v1/batches?after=batch_%00"])
def test_no_parameter_has_it(client: FlaskClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "after")


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/v1/jobs", {"requests": [{"custom_id": "a\0", "body": {}}]}, "requests[0].custom_id"),
    ("/v1/jobs", {"name": "\0", "model": "m", "prompts": ["a"]}, "name"),
    ("/v1/batches", {"input_file_id": "\0", "endpoint": "/v1/completions", "completion_window": "24h"},
     "input_file_id"),
    ("/v1/completions", {"model": "m", "prompt": "a", "user": "a\0"}, "user"),
])
def test_no_name_has_it(client: FlaskClient, path: str, body: dict[str, object], param: str) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)
    assert "U+0000" in answer.json["error"]["message"]


def test_no_file_is_called_it(client: FlaskClient) -> None:
    form = {"purpose": "batch", "file": (io.BytesIO(b"x"), "a\0.jsonl")}
    answer = client.post("/v1/files", data=form, content_type="multipart/form-data")
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "file")
