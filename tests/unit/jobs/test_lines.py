"""What is submitted as a Job is checked like single requests, and all that is wrong is told."""
from __future__ import annotations

import io
import json
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.errors import ApiError, BadJson, InvalidRequest, ModelNotFound
from frontend.inference import Inference
from frontend.jobs import lines
from frontend.jobs.lines import MOST_TOLD, Reader
from frontend.schemas.json_body import LargeObject, parse_object
from tests.small_triton import SmallTriton

GOOD = {"model": "tiny-llama", "prompt": "a", "max_tokens": 4}


@pytest.fixture(scope="module")
def inference(triton: SmallTriton) -> Inference:
    return Inference((triton.address,))


def read(inference: Inference, body: Any) -> list[tuple[str | None, dict[str, Any]]]:
    """The requests that a body makes: JSON, or lines where it is a list."""
    reader = Reader(inference, 32_000)
    with tempfile.TemporaryFile() as file:
        if isinstance(body, list):
            file.write(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
                                for line in body))
            file.flush()
            submission = reader.read_lines(file)
        else:
            file.write(body if isinstance(body, bytes) else json.dumps(body).encode())
            file.flush()
            submission = reader.read_json(file)
    found = [(item.custom_id, json.loads(item.body)) for item in submission.items()]
    assert len(found) == submission.total
    submission.close()
    return found


def refused(inference: Inference, body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(inference, body)
    return caught.value


def test_prompts_with_params(inference: Inference) -> None:
    body = {"model": "tiny-llama", "prompts": ["a", [1, 2]], "params": {"max_tokens": 4}, "name": "x"}
    assert read(inference, body) == [
        (None, {"model": "tiny-llama", "prompt": "a", "max_tokens": 4}),
        (None, {"model": "tiny-llama", "prompt": [1, 2], "max_tokens": 4})]


def test_requests_as_json_and_as_lines_are_the_same(inference: Inference) -> None:
    lines = [{"custom_id": "é", "body": GOOD}, {"custom_id": "b", "body": {**GOOD, "seed": 2**63 - 1, "top_p": 0.1}}]
    found = read(inference, lines)
    assert found == [("é", GOOD), ("b", {**GOOD, "seed": 2**63 - 1, "top_p": 0.1})]
    assert read(inference, {"requests": lines}) == found
    assert read(inference, [lines[0], b"\n", b"  \r\n", lines[1]]) == found


@pytest.mark.parametrize(("body", "param"), [
    ({}, "requests"),
    ({"prompts": ["a"]}, "model"),
    ({"model": "tiny-llama", "prompts": ["a"], "requests": []}, "requests"),
    ({"model": "tiny-llama", "prompts": "a"}, "prompts"),
    ({"requests": [{"custom_id": "a", "body": GOOD}], "model": "tiny-llama"}, "model"),
    ({"model": "tiny-llama", "prompts": ["a"], "params": {"prompt": "b"}}, "params.prompt"),
    ({"model": "tiny-llama", "prompts": ["a"], "parms": {}}, "parms"),
    ({"model": "tiny-llama", "prompts": ["a"], "name": 3}, "name"),
    ({"requests": []}, None),
    ({"model": "tiny-llama", "prompts": ["a", 7]}, "prompts[1].prompt"),
    ({"model": "tiny-llama", "prompts": ["a"], "params": {"temprature": 1}}, "prompts[0].temprature"),
    ({"requests": [{"custom_id": "a", "body": {**GOOD, "temperature": "1"}}]}, "requests[0].body.temperature"),
    ({"requests": [{"custom_id": "", "body": GOOD}]}, "requests[0].custom_id"),
    ({"requests": [{"body": GOOD}]}, "requests[0].custom_id"),
    ({"requests": [{"custom_id": "a", "body": GOOD, "method": "POST"}]}, "requests[0].method"),
    ({"requests": [3]}, "requests[0]"),
    ([{"custom_id": "a", "body": {**GOOD, "stream": True}}], "line 1.body.stream"),
    ([{"custom_id": "a", "body": GOOD}, {"custom_id": "a", "body": GOOD}], "line 2.custom_id"),
    ([{"custom_id": "a", "body": {**GOOD, "prompt": [200_000]}}], "line 1.body.prompt"),
    ([b'{"custom_id": "a", "custom_id": "b"}\n'], "line 1"),
    ([b'{"custom_id": "\xff"}\n'], "line 1"),
    ([b"[]\n"], "line 1"),
], ids=str)
def test_what_is_wrong_is_named(inference: Inference, body: Any, param: str | None) -> None:
    assert refused(inference, body).param == param


def test_a_job_has_one_model(inference: Inference) -> None:
    error = refused(inference, [{"custom_id": "a", "body": GOOD}, {"custom_id": "b", "body": {**GOOD, "model": "x"}}])
    assert error.param == "line 2.body.model"
    with pytest.raises(ModelNotFound):
        read(inference, [{"custom_id": "a", "body": {**GOOD, "model": "x"}}])


def test_every_bad_line_is_named_however_many_there_are(inference: Inference) -> None:
    some = [{"custom_id": str(n), "body": {**GOOD, **({"max_tokens": 0} if n % 3 == 0 else {})}} for n in range(30)]
    error = refused(inference, some)
    assert [problem.param for problem in error.details] == [f"line {n + 1}.body.max_tokens" for n in range(0, 30, 3)]
    many = [{"custom_id": str(n), "body": {**GOOD, "prompt": n}} for n in range(MOST_TOLD + 500)]
    many[700]["body"] = GOOD
    error = refused(inference, many)
    assert len(error.details) == MOST_TOLD + 1
    assert error.details[-1].message == f"All bad lines, {MOST_TOLD + 499} of them: 1-700, 702-{MOST_TOLD + 500}."


def test_a_problem_that_was_seen_before_is_told_again_with_the_prompts_own(inference: Inference) -> None:
    bad = {**GOOD, "max_tokens": "4"}
    error = refused(inference, [{"custom_id": "a", "body": bad}, {"custom_id": "b", "body": {**bad, "prompt": [-1]}},
                                {"custom_id": "c", "body": {**GOOD, "max_tokens": 4.0}}])
    assert [problem.param for problem in error.details] == [
        "line 1.body.max_tokens", "line 2.body.prompt", "line 2.body.max_tokens", "line 3.body.max_tokens"]


@pytest.mark.parametrize("body", [
    b"", b"[]", b"3", b"{", b"{}x", b'{"prompts": [1, 2}', b'{"prompts": [1,]}', b'{"prompts": [1], "prompts": []}',
    b'{"a" 1}', b'{"a": 1,}', b'{"prompts": [NaN]}', b'{"prompts": ["\\ud800"]}', b'{"prompts": [{"a": 1, "a": 2}]}',
    b'{"prompts": [' + b"[" * 50 + b"]" * 50 + b"]}", b'\xef\xbb\xbf{}', b'{"a": "\xff"}', b'{"prompts": [1e999]}',
    b'{1: 2}', b'{"a": 1 "b": 2}', b'{"prompts": [1 2]}', b"{'a': 1}", b'{"a": 1}{}',
])
def test_what_is_no_strict_json_is_refused(inference: Inference, body: bytes) -> None:
    with pytest.raises(BadJson):
        read(inference, body)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10**20, 10**20) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4), max_leaves=12)


def test_too_many_are_refused_at_once_however_bad_they_are(
    inference: Inference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body holds 25 million bad ones, and what is wrong with each would fill the memory."""
    monkeypatch.setattr(lines, "MOST_REQUESTS", 5)
    for bad in (b"x\n", b"{}\n", b"\n1\n"):
        assert "at most 5 requests" not in refused(inference, [bad] * 5).message
        error = refused(inference, [bad] * 6)
        assert ("at most 5 requests" in error.message, error.details) == (True, ())
    for body in ({"model": "tiny-llama", "prompts": [{}] * 6}, {"requests": [1] * 6}):
        error = refused(inference, body)
        assert ("more than 5 items" in error.message, error.details) == (True, ())


@given(st.dictionaries(st.sampled_from(["prompts", "requests", "a", "b c", "é"]), _VALUES), st.sampled_from([None, 1]))
def test_an_object_read_in_parts_is_the_object(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    whole = LargeObject(text, ("prompts", "requests"), 100)
    lists = {name: list(whole.items(name)) for name in ("prompts", "requests") if whole.is_list(name)}
    assert {**whole.members, **lists} == parse_object(text.encode()) == value


@given(st.binary(max_size=30) | st.text('{}[]",:\\ 1ae', max_size=20).map(str.encode))
def test_both_ways_to_read_refuse_the_same(body: bytes) -> None:
    def outcome(work: Any) -> bool:
        try:
            work()
        except ApiError:
            return False
        return True

    def in_parts() -> None:
        text = io.TextIOWrapper(io.BytesIO(body), "utf-8", newline="").read()
        for name in ("a", "1"):
            if (whole := LargeObject(text, ("a", "1"), 100)).is_list(name):
                list(whole.items(name))

    try:
        body.decode()
    except UnicodeDecodeError:
        return
    assert outcome(in_parts) == outcome(lambda: parse_object(body))
