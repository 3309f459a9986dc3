"""Jobs on the real stack: a script that exits at once, Activations that equal the inline ones, OpenAI's example."""
from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import safetensors
import safetensors.torch
import torch

from tests.job_stack import FINAL, Json, lines
from tests.paid import until
from tests.stack import Stack

SUBMIT = """
import sys, httpx
url, key = sys.argv[1:]
answer = httpx.post(f"{url}/v1/jobs", headers={"Authorization": f"Bearer {key}"}, json={
    "model": "tiny-llama", "prompts": [f"Number {n}" for n in range(40)], "params": {"max_tokens": 8, "seed": 1}})
print(answer.raise_for_status().json()["id"])
"""


def ended(http: httpx.Client, job_id: str) -> Json:
    until(lambda: http.get(f"/v1/jobs/{job_id}", params={"wait": 30}).json()["status"] in FINAL, 240)
    return dict(http.get(f"/v1/jobs/{job_id}").json())


def submit(http: httpx.Client, **body: Any) -> str:
    answer = http.post("/v1/jobs", json=body if "requests" in body else {"model": "tiny-llama", **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def results(http: httpx.Client, job_id: str) -> list[Json]:
    return lines(http.get(f"/v1/jobs/{job_id}/results").raise_for_status())


def test_a_job_of_a_script_that_exits_at_once_completes(stack: Stack, http: httpx.Client) -> None:
    command = [sys.executable, "-c", SUBMIT, stack.url, stack.key]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    done = ended(http, ran.stdout.strip())
    assert (done["status"], done["counts"]) == ("completed", {"total": 40, "completed": 40, "failed": 0})
    found = results(http, done["id"])
    assert [line["index"] for line in found] == list(range(40))
    assert done["tokens"]["charged"] == sum(line["response"]["usage"]["total_tokens"] for line in found)


def test_a_result_is_what_a_single_request_gets(http: httpx.Client) -> None:
    """One at a time, since numbers depend a little on who else is in the batch."""
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 6, "temperature": 0, "n": 1, "logprobs": 2,
            "prompt_logprobs": 1, "echo": True, "return_token_ids": True, "user": "me"}
    single = http.post("/v1/completions", json=body).json()
    job_id = submit(http, prompts=[body.pop("prompt")], params={key: body[key] for key in body if key != "model"})
    ended(http, job_id)
    (line,) = results(http, job_id)
    assert line["response"].keys() == single.keys()
    assert line["response"]["usage"] == single["usage"]
    assert line["response"]["choices"] == single["choices"]


def test_shards_hold_what_single_requests_get_bit_for_bit(http: httpx.Client, tmp_path: Path) -> None:
    """As above, each in a Job of its own, one after the other; and then all that a shard of several is."""
    asked = [{"prompt": "The sky is", "layers": [0, 3], "positions": "all", "dtype": "float32", "n": 1},
             {"prompt": [1, 2, 3, 4, 5], "layers": ["embedding", "final_norm"], "positions": [0, -1], "dtype": None,
              "n": 1},
             {"prompt": "Two of them", "layers": "all", "positions": "last", "dtype": "bfloat16", "n": 2}]
    for one in asked:
        activations = {key: one[key] for key in ("layers", "positions", "dtype") if one[key] is not None}
        params = {"max_tokens": 4, "seed": 3, "n": one["n"], "activations": activations}
        single = http.post("/v1/completions", json={"model": "tiny-llama", "prompt": one["prompt"], **params}).json()
        job_id = submit(http, prompts=[one["prompt"]], params=params)
        assert ended(http, job_id)["counts"]["completed"] == 1
        (line,) = results(http, job_id)
        (shard,) = http.get(f"/v1/jobs/{job_id}/activations").json()["data"]
        content = http.get(shard["url"]).content
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["bytes"], shard["sha256"])
        tensors = safetensors.torch.load(content)
        assert len(tensors) == len(shard["entries"]) == one["n"]
        for choice, mine in zip(single["choices"], line["response"]["choices"], strict=True):
            inline = safetensors.torch.load(base64.b64decode(choice["activations"]["data"]))["activations"]
            there = mine["activations"]
            assert (there["shard"], there["format"]) == (shard["name"], "safetensors")
            assert "data" not in there
            assert tensors[there["tensor"]].dtype == inline.dtype
            assert torch.equal(tensors[there["tensor"]].view(torch.uint8), inline.view(torch.uint8))
            assert {key: there[key] for key in ("layers", "positions", "shape", "dtype")} == {
                key: choice["activations"][key] for key in ("layers", "positions", "shape", "dtype")}
        path = tmp_path / shard["name"]
        path.write_bytes(content)
        with safetensors.safe_open(path, "pt") as file:
            assert json.loads(file.metadata()["entries"]) == shard["entries"]


def test_a_shard_of_many_and_its_ranges(http: httpx.Client) -> None:
    job_id = submit(http, requests=[{"custom_id": f"r{n}", "body": {
        "model": "tiny-llama", "prompt": f"Number {n}", "max_tokens": 3, "activations": {"layers": [1, 2]}}}
        for n in range(30)])
    assert ended(http, job_id)["counts"]["completed"] == 30
    shards = http.get(f"/v1/jobs/{job_id}/activations", params={"limit": 1000}).json()["data"]
    assert len(shards) < 30
    entries = [entry for shard in shards for entry in shard["entries"]]
    assert sorted((entry["index"], entry["custom_id"]) for entry in entries) == [(n, f"r{n}") for n in range(30)]
    for shard in shards:
        content = http.get(shard["url"]).content
        tensors = safetensors.torch.load(content)
        assert {entry["tensor"]: entry["shape"] for entry in shard["entries"]} == {
            name: list(tensor.shape) for name, tensor in tensors.items()}
    url, size = shard["url"], shard["bytes"]
    for asked, start, end in (("bytes=0-9", 0, 10), (f"bytes={size - 5}-", size - 5, size),
                              ("bytes=-7", size - 7, size), ("bytes=100-199", 100, 200)):
        part = http.get(url, headers={"Range": asked})
        assert (part.status_code, part.content) == (206, content[start:end])
        assert part.headers["Content-Range"] == f"bytes {start}-{end - 1}/{size}"
    assert http.get(url, headers={"Range": f"bytes={size}-"}).status_code == 416
    assert http.get(url, headers={"Range": "bytes=0-9", "If-Range": '"other"'}).status_code == 200
    http.delete(f"/v1/jobs/{job_id}").raise_for_status()
    assert http.get(url).status_code == 404


def test_openais_batch_example(client: openai.OpenAI, tmp_path: Path) -> None:
    """The steps of OpenAI's guide to batches, word for word but for base URL, model and endpoint."""
    (tmp_path / "batchinput.jsonl").write_text(
        '{"custom_id": "request-1", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny-llama", '
        '"prompt": "You are a helpful assistant.", "max_tokens": 10}}\n'
        '{"custom_id": "request-2", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny-llama", '
        '"prompt": "You are an unhelpful assistant.", "max_tokens": 10}}\n')
    batch_input_file = client.files.create(file=(tmp_path / "batchinput.jsonl").open("rb"), purpose="batch")
    batch_input_file_id = batch_input_file.id
    created = client.batches.create(
        input_file_id=batch_input_file_id, endpoint="/v1/completions", completion_window="24h",
        metadata={"description": "nightly eval job"})
    until(lambda: client.batches.retrieve(created.id).status == "completed")
    batch = client.batches.retrieve(created.id)
    assert batch.output_file_id is not None
    file_response = client.files.content(batch.output_file_id)
    assert [json.loads(line)["custom_id"] for line in file_response.text.splitlines()] == ["request-1", "request-2"]
    assert created.id in [one.id for one in client.batches.list(limit=10).data]


@pytest.mark.parametrize("path", ["/v1/jobs/none", "/v1/files/none", "/v1/batches/none", "/v1/jobs/none/results"])
def test_what_is_not_there(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404
