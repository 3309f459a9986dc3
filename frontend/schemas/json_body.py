"""Strict JSON: a body is one UTF-8 object that means exactly one thing, or it is refused.

The standard library's parser is used because it is exact (integers of any size, no silent rounding), reports duplicate
keys at any depth, and reads 16 MB of token ids in 0.4 s. What it lets through beyond RFC 8259 is refused here.
"""
from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NoReturn

from frontend.errors import BadJson, InvalidRequest

#: Far deeper than any field that the API knows.
MAX_DEPTH = 32

_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN = 80


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises BadJson for anything else; its message can always be encoded."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJson(f"The body is not valid UTF-8: byte {error.start} can't be read.") from None
    if text.startswith("\ufeff"):
        raise BadJson("The body starts with a byte order mark: send plain UTF-8 JSON.")
    with _bad_json():
        value = _DECODER.decode(text)
    if not isinstance(value, dict):
        raise BadJson("The body must be one JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH or _SURROGATE_ESCAPE.search(body):
        _check_tree(value)
    return value


class LargeObject:
    """A JSON object as `parse_object` reads it, except that the items of some of its lists are made one at a time.

    `members` are the others. Objects of Python take many times as much memory as their text.
    """

    def __init__(self, text: str, lists: Collection[str], most: int) -> None:
        """Reads and checks all of `text`. Raises BadJson, or InvalidRequest where such a list has more than `most`
        items: millions of them take minutes."""
        if text.startswith("\ufeff"):
            raise BadJson("The body starts with a byte order mark: send plain UTF-8 JSON.")
        self._text = text
        self._lists: dict[str, int] = {}
        self.members: dict[str, Any] = {}
        at = self._space(0)
        if text[at : at + 1] != "{":
            self._value(at)  # says what is wrong with it, if anything is
            raise BadJson("The body must be one JSON object.")
        at = self._space(at + 1)
        first = True
        while text[at : at + 1] != "}" or not first:
            if text[at : at + 1] != '"':
                raise self._bad("Expecting property name enclosed in double quotes", at)
            name, at = self._value(at)
            if name in self.members or name in self._lists:
                raise BadJson(f"The body has the key '{printable(name)}' twice in one object.")
            at = self._space(at)
            if text[at : at + 1] != ":":
                raise self._bad("Expecting ':' delimiter", at)
            at = self._space(at + 1)
            if name in lists and text[at : at + 1] == "[":
                self._lists[name] = at
                for number, (_, end) in enumerate(self._items(at)):
                    if number > most:
                        raise InvalidRequest(f"{name} has more than {most} items.", name)
                    at = end
            else:
                self.members[name], at = self._value(at)
            at = self._space(at)
            first = False
            if text[at : at + 1] == "}":
                break
            if text[at : at + 1] != ",":
                raise self._bad("Expecting ',' delimiter", at)
            at = self._space(at + 1)
        if self._space(at + 1) != len(text):
            raise self._bad("Extra data", self._space(at + 1))

    def __contains__(self, name: str) -> bool:
        return name in self._lists or name in self.members

    def is_list(self, name: str) -> bool:
        """Whether a member is a list that `items` reads."""
        return name in self._lists

    def items(self, name: str) -> Iterator[Any]:
        """The items of such a list, each made when it is asked for."""
        return (item for item, _ in islice(self._items(self._lists[name]), 1, None))

    def _items(self, at: int) -> Iterator[tuple[Any, int]]:
        """First nothing, and then each item, with where the list would end if it ended there."""
        at = self._space(at + 1)
        yield None, at + 1
        if self._text[at : at + 1] == "]":
            return
        while True:
            item, at = self._value(at)
            at = self._space(at)
            yield item, at + 1
            if self._text[at : at + 1] == "]":
                return
            if self._text[at : at + 1] != ",":
                raise self._bad("Expecting ',' delimiter", at)
            at = self._space(at + 1)

    def _value(self, at: int) -> tuple[Any, int]:
        with _bad_json():
            value, end = _DECODER.raw_decode(self._text, at)
        if type(value) in (dict, list, str):
            _check_tree({"": value})
        return value, end

    def _space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def _bad(self, message: str, at: int) -> BadJson:
        return _malformed(json.JSONDecodeError(message, self._text, at))


@contextmanager
def _bad_json() -> Iterator[None]:
    """The parser's errors as ours."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise _malformed(error) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        # What is left of ValueError is Python's own limit of 4,300 digits.
        raise BadJson("The body holds an integer with too many digits.") from None


def _malformed(error: json.JSONDecodeError) -> BadJson:
    return BadJson(
        f"The body is not valid JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}.")


def printable(text: str) -> str:
    """`text` cut to a length fit for an error message, with whatever UTF-8 can't hold written as an escape."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJson(f"The body has the key '{printable(key)}' twice in one object.")
            seen.add(key)
    return mapping


def _number(literal: str) -> float:
    """A float, unless a double can't hold it: 1e400 is no infinity, and 1e-400 is no zero."""
    value = float(literal)
    mantissa = re.split("[eE]", literal)[0]
    if value in (float("inf"), float("-inf")) or (value == 0 and mantissa.strip("-0.")):
        raise BadJson("The body holds a number beyond the range of a 64-bit float.")
    return value


def _constant(name: str) -> NoReturn:
    raise BadJson(f"The body is not valid JSON: {name} is no JSON number.")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_number, parse_constant=_constant)


def _check_tree(root: dict[str, Any]) -> None:
    """Refuse too deep nesting and lone surrogates, level by level, so that nothing here recurses."""
    dicts: list[dict[str, Any]] = [root]
    lists: list[list[Any]] = []
    for _ in range(MAX_DEPTH):
        children = list(chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists)))
        kinds = set(map(type, children))
        try:
            for text in chain(chain.from_iterable(dicts), children if str in kinds else ()):
                if type(text) is str and not text.isascii():
                    text.encode("utf-8")
        except UnicodeEncodeError:
            raise BadJson("The body holds a lone surrogate, which no Unicode text can.") from None
        dicts = [child for child in children if type(child) is dict] if dict in kinds else []
        lists = [child for child in children if type(child) is list] if list in kinds else []
        if not dicts and not lists:
            return
    raise _too_deep()


def _too_deep() -> BadJson:
    return BadJson(f"The body nests deeper than {MAX_DEPTH} levels.")
