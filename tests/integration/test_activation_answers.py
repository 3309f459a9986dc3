"""Answers with Activations: whole, streamed and as a file, and the errors that come in their place."""
from __future__ import annotations

import base64
import json
import random
import time
from pathlib import Path

import httpx
import openai
import pytest
import safetensors
import safetensors.torch
import torch

from tests import sse
from tests.activations import Json, complete, numbers, ran, tensor
from tests.engine import (
    PUBLISHED_EVERY,
    STOPPED_WITHIN,
    ask_and_leave,
    metric,
    wait_until_idle,
    wait_until_left,
)
from tests.reference import Reference
from tests.stack import Stack

FILE = {"Accept": "application/vnd.safetensors"}
#: The end-of-text token of tiny-llama.
END = 128001


def refusal(http: httpx.Client, headers: dict[str, str] | None = None, **body: object) -> tuple[int, Json]:
    answer = http.post("/v1/completions", json={"model": "tiny-llama", "prompt": "x"} | body, headers=headers)
    assert answer.headers["Content-Type"] == "application/json"
    return answer.status_code, answer.json()["error"]


@pytest.mark.parametrize("more", [
    {}, {"n": 3, "seed": 1, "temperature": 1}, {"prompt": ["x", "The sky is"]}, {"logprobs": 1, "echo": True},
    {"stop": ["a", "e"], "seed": 2, "temperature": 1}, {"activations": {"layers": [1], "positions": [0, -1]}},
    {"model": "smollm2-135m"}], ids=str)
def test_the_joined_stream_equals_the_unstreamed_answer(http: httpx.Client, more: Json) -> None:
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 8, "temperature": 0,
            "activations": {"layers": "all", "dtype": "bfloat16"}} | more
    whole = http.post("/v1/completions", json=body).json()["choices"]
    chunks = sse.events(http.post("/v1/completions", json=body | {"stream": True}))
    for chunk in chunks:
        for part in chunk["choices"]:
            assert ("activations" in part) is (part["finish_reason"] is not None)
    for joined, right in zip(sse.join(chunks), whole, strict=True):
        assert (joined["text"], joined["finish_reason"]) == (right["text"], right["finish_reason"])
        assert torch.allclose(tensor(joined).float(), tensor(right).float(), rtol=2**-7, atol=1e-5)
        for choice in (joined, right):
            del choice["activations"]["data"]
        assert joined["activations"] == right["activations"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_raw_file_is_the_same_answer(http: httpx.Client, tmp_path: Path, dtype: str) -> None:
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 5, "temperature": 0, "logprobs": 1,
            "ignore_eos": True, "activations": {"layers": [2, "final_norm"], "dtype": dtype}}
    answer = http.post("/v1/completions", json=body, headers=FILE)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == FILE["Accept"]
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    assert "Content-Encoding" not in answer.headers
    path = tmp_path / "answer.safetensors"
    path.write_bytes(answer.content)
    with safetensors.safe_open(path, "pt") as file:
        got, metadata = file.get_tensor("activations"), file.metadata()
    whole = http.post("/v1/completions", json=body).json()
    (choice,) = whole["choices"]
    assert torch.allclose(got.float(), tensor(choice).float(), rtol=2**-7, atol=1e-5)
    completion = json.loads(metadata["completion"])
    assert completion.keys() == whole.keys()
    assert completion["usage"] == whole["usage"]
    assert completion["choices"][0]["text"] == choice["text"]
    assert completion["choices"][0]["activations"].keys() == choice["activations"].keys() - {"data", "encoding"}
    assert metadata["model"] == "tiny-llama"
    assert metadata["fingerprint"] == whole["system_fingerprint"]
    assert json.loads(metadata["layers"]) == [2, "final_norm"]
    assert json.loads(metadata["positions"]) == list(range(8))


def test_the_sdk(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny-llama", prompt="The sky is", max_tokens=3, temperature=0,
        extra_body={"activations": {"layers": [1, 3], "positions": "prompt"}})
    activations = answer.choices[0].activations  # type: ignore[attr-defined]
    decoded = safetensors.torch.load(base64.b64decode(activations["data"]))["activations"]
    assert tuple(decoded.shape) == (2, 4, 64)
    raw = client.completions.with_raw_response.create(
        model="tiny-llama", prompt="The sky is", max_tokens=3, temperature=0, extra_headers=FILE,
        extra_body={"activations": {"layers": [1, 3], "positions": "prompt"}})
    assert torch.allclose(safetensors.torch.load(raw.content)["activations"], decoded, atol=1e-5)
    *_, last = client.completions.create(
        model="tiny-llama", prompt="The sky is", max_tokens=3, temperature=0, stream=True,
        extra_body={"activations": {"layers": [1, 3], "positions": "prompt"}})
    streamed = last.choices[0].activations["data"]  # type: ignore[attr-defined]
    assert torch.allclose(safetensors.torch.load(base64.b64decode(streamed))["activations"], decoded, atol=1e-5)


@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity"])
def test_tens_of_megabytes(http: httpx.Client, checkpoints: Path, coding: str) -> None:
    """Such an answer is written as it is rendered, and not compressed, which its numbers would not reward."""
    reference = Reference.of(checkpoints / "smollm2-135m")
    ids = [random.Random(3).randrange(1000, 40_000) for _ in range(400)]
    body = {"model": "smollm2-135m", "prompt": ids, "max_tokens": 2, "temperature": 0, "return_token_ids": True,
            "activations": {"layers": reference.layers}}
    with http.stream("POST", "/v1/completions", json=body, headers={"Accept-Encoding": coding}) as answer:
        assert "Content-Encoding" not in answer.headers
        content = b"".join(answer.iter_raw())
    (choice,) = json.loads(content)["choices"]
    assert tensor(choice).nbytes == 32 * 401 * 576 * 4
    right = reference.run(ran(choice))
    for layer, got in zip(reference.layers, numbers(choice), strict=True):
        right[layer].check(got)


def test_log_probabilities_that_are_many_are_still_compressed(http: httpx.Client) -> None:
    body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 2, "logprobs": -1, "activations": {"layers": [0]}}
    answer = http.post("/v1/completions", json=body, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert tensor(answer.json()["choices"][0]).shape[0] == 1


# Refusals and failures

@pytest.mark.parametrize(("activations", "param", "said"), [
    ({"layers": [4]}, "activations.layers", "0 to 3"), ({"layers": ["lm_head"]}, "activations.layers", "final_norm"),
    ({"layers": [0], "positions": [5]}, "activations.positions", "0 to 4"),
    ({"layers": [0], "positions": [-3]}, "activations.positions", "-1 to -2"),
    ({"layers": [0], "positions": [1, -1]}, "activations.positions", "1 and -1"),
    ({"layers": [0], "layer": 1}, "activations.layer", "did you mean layers?"),
    ({"layer": [0]}, "activations.layer", "did you mean layers?"),
], ids=str)
def test_refused(http: httpx.Client, activations: Json, param: str, said: str) -> None:
    """The prompt has 2 tokens."""
    status, error = refusal(http, max_tokens=4, activations=activations)
    assert (status, error["code"], error["param"]) == (400, "invalid_request", param)
    assert said in error["message"]


def test_what_is_too_large_is_refused_with_what_would_fit(http: httpx.Client, stack: Stack) -> None:
    before = metric(stack, "strata_prompt_tokens_total", "smollm2-135m")
    body = {"model": "smollm2-135m", "prompt": [5] * 4000, "max_tokens": 96}
    status, error = refusal(http, **body, activations={"layers": "all"})
    assert (status, error["code"], error["param"]) == (400, "activations_too_large", "activations")
    assert str(30 * 4095 * 576 * 4) in error["message"]
    assert str(256 * 2**20) in error["message"]
    assert "28 of the Layers" in error["message"]
    assert metric(stack, "strata_prompt_tokens_total", "smollm2-135m") == before


@pytest.mark.parametrize(("fields", "param"), [
    ({"n": 2, "max_tokens": 1}, "n"), ({"prompt": ["x", "y"], "max_tokens": 1}, "prompt"), ({"stream": True}, "stream"),
    ({"activations": ...}, "activations"), ({"prompt_logprobs": -1}, "prompt_logprobs")], ids=str)
def test_what_a_file_can_not_hold(http: httpx.Client, fields: Json, param: str) -> None:
    body = {"prompt": "The sky is", "activations": {"layers": [0], "positions": "last"}} | fields
    status, error = refusal(http, FILE, **{name: value for name, value in body.items() if value is not ...})
    assert (status, error["code"], error["param"]) == (400, "invalid_request", param)
    assert "Accept" in error["message"]


def test_an_error_is_json_also_for_a_client_that_wants_a_file(http: httpx.Client) -> None:
    status, error = refusal(http, FILE, temprature=1, activations={"layers": [0]})
    assert (status, error["param"]) == (400, "temprature")


@pytest.mark.parametrize("headers", [{}, FILE])
def test_a_listed_position_that_the_completion_never_reached_fails_the_request(
    http: httpx.Client, headers: dict[str, str]
) -> None:
    body = {"prompt": "The sky is", "max_tokens": 8, "allowed_token_ids": [END]}
    status, error = refusal(http, headers, **body, activations={"layers": [0], "positions": [0, 6]})
    assert (status, error["type"], error["code"]) == (502, "server_error", "inference_error")
    assert "position 6" in error["message"]
    assert "ignore_eos" in error["message"]
    asked = {"model": "tiny-llama", **body, "activations": {"layers": [0], "positions": [0, 6]}}
    assert http.post("/v1/completions", json=asked, headers=headers).headers["x-should-retry"] == "false"
    assert complete(http, **body, activations={"layers": [0], "positions": [0, 3]})[0]["finish_reason"] == "stop"


def test_in_a_stream_that_failure_is_an_event_and_no_end(http: httpx.Client) -> None:
    # It ends late: a failure that comes before the first word has left would be a 502, as on a busy machine.
    body = {"model": "tiny-llama", "prompt": "The sky is", "max_tokens": 60, "allowed_token_ids": [64, END],
            "logit_bias": {"64": 20}, "min_tokens": 3, "stop": ["a" * 40], "stream": True, "temperature": 0,
            "activations": {"layers": [0], "positions": [62]}}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    data = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert data[-1] != "[DONE]"
    error = json.loads(data[-1])["error"]
    assert error["code"] == "inference_error"
    assert "position 62" in error["message"]
    assert not any("activations" in choice for event in data[:-1] for choice in json.loads(event)["choices"])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_stops_the_engine_and_frees_the_memory(
    stack: Stack, http: httpx.Client, streamed: bool
) -> None:
    wait_until_idle(stack, "tiny-llama")
    shared = {path.name for path in Path("/dev/shm").iterdir()}
    body = {"model": "tiny-llama", "prompt": ["x"] * 16, "max_tokens": 2000, "ignore_eos": True, "stream": streamed,
            "activations": {"layers": "all"}}
    ask_and_leave(stack, http.headers, body)
    left = time.monotonic()
    wait_until_left(stack)
    assert time.monotonic() - left < STOPPED_WITHIN
    wait_until_idle(stack, "tiny-llama")
    assert time.monotonic() - left < STOPPED_WITHIN + PUBLISHED_EVERY
    while remaining := {path.name for path in Path("/dev/shm").iterdir()} - shared:
        assert time.monotonic() - left < 10, remaining
        time.sleep(0.1)


def test_models_say_what_can_be_captured(http: httpx.Client) -> None:
    for model in ("tiny-llama", "smollm2-135m"):
        capabilities = http.get(f"/v1/models/{model}").json()["capabilities"]
        assert capabilities["activations"] == {"layers": "all", "dtypes": ["bfloat16", "float16", "float32"],
                                               "max_bytes": 256 * 2**20}


