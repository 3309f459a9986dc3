"""A body is one strict JSON object, or 400 bad_json with a message that can be sent."""
from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.errors import BadJson
from frontend.schemas.json_body import MAX_DEPTH, parse_object

REFUSED = {
    "nothing": b"",
    "no JSON": b"hello",
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "two objects": b"{}{}",
    "a comma too many": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "a comment": b'{"a":1} // one',
    "a leading zero": b'{"a":01}',
    "a plus sign": b'{"a":+1}',
    "a bare dot": b'{"a":.5}',
    "hexadecimal": b'{"a":0x10}',
    "a control character in a string": b'{"a":"\x01"}',
    "a form feed": b"\x0c{}",
    "a no-break space": "\u00a0{}".encode(),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-16 without a mark": '{"a":1}'.encode("utf-16-le"),
    "Latin-1": '{"a":"é"}'.encode("latin-1"),
    "a surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "an overlong encoding": b'{"a":"\xc0\xaf"}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "minus Infinity": b'{"a":[-Infinity]}',
    "a float that overflows": b'{"a":1e400}',
    "a negative float that overflows": b'{"a":-1e400}',
    "a float that underflows": b'{"a":1e-400}',
    "a float that underflows with its digits behind the point": b'{"a":0.000001E-400}',
    "an integer of 5,000 digits": b'{"a":' + b"1" * 5000 + b"}",
    "a duplicate key": b'{"a":1,"a":1}',
    "a duplicate key below": b'{"x":[{"b":{"a":1,"a":2}}]}',
    "a duplicate key in an escape": b'{"a":1,"\\u0061":2}',
    "a lone high surrogate": b'{"a":"\\ud800"}',
    "a lone low surrogate": b'{"a":"\\udfff"}',
    "surrogates in the wrong order": b'{"a":"\\ude42\\ud83d"}',
    "halves in two strings": b'{"a":["\\ud83d","\\ude42"]}',
    "a lone surrogate as a key": b'{"\\ud800":1}',
    "a lone surrogate as a key below": b'{"x":[{"\\uDBff":1}]}',
    "a lone surrogate twice as a key": b'{"\\ud800":1,"\\ud800":2}',
    "100,000 brackets": b"[" * 100_000,
    "100,000 brackets that close": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "one level too many": b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_strict_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadJson) as refused:
        parse_object(body)
    assert (refused.value.status, refused.value.code) == (400, "bad_json")
    orjson.dumps(refused.value.message)  # raises for text that UTF-8 can't hold
    assert len(refused.value.message) < 250


TAKEN: dict[str, tuple[bytes, Any]] = {
    "an escaped pair": (b'{"a":"\\ud83d\\ude42"}', "🙂"),
    "an escaped backslash before what looks like a surrogate": (b'{"a":"\\\\ud83d"}', "\\ud83d"),
    "an escaped pair beside deep structure": (b'{"a":[[["\\ud83d\\ude42"]]]}', [[["🙂"]]]),
    "an integer beyond 64 bits": (b'{"a":18446744073709551616}', 2**64),
    "a zero with an exponent": (b'{"a":0.0e-400}', 0.0),
    "the largest float": (b'{"a":1.7976931348623157e308}', 1.7976931348623157e308),
    "the smallest float": (b'{"a":5e-324}', 5e-324),
    "an integer, which stays one": (b'{"a":2}', 2),
    "a float, which stays one": (b'{"a":2.0}', 2.0),
    "the deepest nesting": (b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}", ...),
    "many brackets in a text": (b'{"a":"' + b"[" * 100_000 + b'"}', "[" * 100_000),
    "white space": (b' \t\r\n{ "a" : 1 } \n', 1),
    "the same key in two objects": (b'{"a":{"a":{"a":1}}}', {"a": {"a": 1}}),
    "a NUL": (b'{"a":"\\u0000"}', "\0"),
}


@pytest.mark.parametrize(("body", "value"), TAKEN.values(), ids=TAKEN.keys())
def test_what_is_one_is_taken_exactly(body: bytes, value: Any) -> None:
    parsed = parse_object(body)["a"]
    if value is not ...:
        assert parsed == value
        assert type(parsed) is type(value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=5), below, max_size=4), max_leaves=10,
)


@given(st.dictionaries(st.text(), _json, max_size=5), st.booleans())
def test_every_json_object_comes_back(value: dict[str, Any], ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_object(body) == value


@given(st.binary(max_size=64))
def test_bytes_are_parsed_or_refused_and_never_crash(body: bytes) -> None:
    try:
        parse_object(body)
    except BadJson as refused:
        orjson.dumps(refused.message)


@given(st.text(alphabet=st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF), min_size=1))
def test_no_escaped_surrogate_gets_through_alone(text: str) -> None:
    body = json.dumps({"a": [text]}).encode()
    try:
        parsed = parse_object(body)["a"][0]
    except BadJson:
        return
    parsed.encode()


def test_16_megabytes_of_token_ids_take_seconds_at_most() -> None:
    body = b'{"prompt":[' + b"123456," * 2_300_000 + b"1]}"
    start = time.perf_counter()
    parse_object(body)
    assert time.perf_counter() - start < 5
