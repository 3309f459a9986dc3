"""Reads what is submitted as a Job, a request at a time: JSON or JSONL, checked as POST /v1/completions checks a body.

All that is wrong is found before anything is kept. What is right goes to a spool, so that memory does not grow with the
number of requests.
"""
from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import orjson
from marshmallow import Schema

from frontend.completions.plan import check_ids
from frontend.db.job_records import Item
from frontend.errors import ApiError, BadJson, InvalidRequest, Problem
from frontend.inference import Inference, ModelCard
from frontend.schemas.completions import CompletionChecker
from frontend.schemas.jobs import JOB_LINE, check_job, check_line
from frontend.schemas.json_body import LargeObject, parse_object, printable

MOST_REQUESTS = 50_000
#: Problems that are told in full. Of all others, the numbers of their lines are.
MOST_TOLD = 1000
_IN_MEMORY = 2**20


@dataclass
class Submission:
    """Requests that are all right: their model, how many, and a spool that holds them."""

    spool: IO[bytes]
    name: str | None = None
    model: str = ""
    total: int = 0

    def items(self) -> Iterator[Item]:
        """The requests in order. Reads the spool, so only one may read at a time."""
        self.spool.seek(0)
        for place in range(self.total):
            custom_id = orjson.loads(self.spool.readline())
            yield Item(place, custom_id, self.spool.readline()[:-1])

    def close(self) -> None:
        """Let go of the spool."""
        self.spool.close()


@dataclass
class _Found:
    """What is wrong so far, by line."""

    told: list[Problem] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)

    def add(self, number: int, problems: list[Problem]) -> None:
        self.bad.append(number)
        self.told += problems[: max(MOST_TOLD - len(self.told), 0)]


class Reader:
    """Checks the requests of one submission. `counted_from` is the number of the first line in messages."""

    def __init__(self, inference: Inference, max_total_tokens: int, line: Schema = JOB_LINE) -> None:
        self._inference = inference
        self._checker = CompletionChecker(max_total_tokens)
        self._line = line
        self._card: ModelCard | None = None
        self._seen: dict[str, int] = {}
        self._found = _Found()

    def read_json(self, file: IO[bytes]) -> Submission:
        """Read one JSON object. Raises BadJson, InvalidRequest with every problem, ModelNotFound or Unavailable."""
        whole = LargeObject(_text(file), ("prompts", "requests"), MOST_REQUESTS)
        both = [name for name in ("prompts", "requests") if name in whole]
        values = check_job({**whole.members, **{name: [] for name in both if whole.is_list(name)}})
        _check_shape(whole, both)
        submission = Submission(_spool(), values["name"])
        if both == ["requests"]:
            for place, line in enumerate(whole.items("requests")):
                self._take(submission, f"requests[{place}]", place, line)
        else:
            params: dict[str, Any] = values["params"]
            for place, prompt in enumerate(whole.items("prompts")):
                body = {"model": values["model"], "prompt": prompt, **params}
                self._keep(submission, f"prompts[{place}]", place, None, body, f"prompts[{place}]")
        return self._done(submission, "requests")

    def read_lines(self, file: IO[bytes], name: str | None = None) -> Submission:
        """Read JSON objects, one a line; one that is no JSON is a bad line like others. Raises as `read_json`."""
        submission = Submission(_spool(), name)
        file.seek(0)
        lines = 0
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            lines += 1
            if lines > MOST_REQUESTS:  # right or wrong: what is wrong with millions would take gigabytes to tell
                raise InvalidRequest(f"A Job has at most {MOST_REQUESTS} requests. Make several Jobs of them.")
            try:
                line = parse_object(raw)
            except BadJson as error:
                message = error.message.replace("The body", "the line", 1)
                self._found.add(number, [Problem(f"Line {number}: {message}", f"line {number}")])
                continue
            self._take(submission, f"Line {number}", number, line)
        return self._done(submission, "lines")

    def _take(self, submission: Submission, where: str, number: int, line: Any) -> None:
        problems = check_line(self._line, line)
        if problems:
            self._found.add(number, [Problem(f"{where}: {problem.message}", _param(where, problem.param))
                                     for problem in problems])
            return
        custom_id = line["custom_id"]
        if custom_id in self._seen:
            self._found.add(number, [Problem(f"{where}: custom_id '{printable(custom_id)}' is that of "
                                             f"{_same_as(where, self._seen[custom_id])} too.",
                                             _param(where, "custom_id"))])
            return
        self._seen[custom_id] = number
        self._keep(submission, where, number, custom_id, line["body"], _param(where, "body"))

    def _keep(
        self, submission: Submission, where: str, number: int, custom_id: str | None, body: dict[str, Any], param: str
    ) -> None:
        problems = self._problems(submission, body)
        if problems:
            self._found.add(number, [Problem(f"{where}: {problem.message}", _param(param, problem.param))
                                     for problem in problems])
            return
        submission.total += 1
        if not self._found.bad:
            submission.spool.write(orjson.dumps(custom_id) + b"\n" + orjson.dumps(body) + b"\n")

    def _problems(self, submission: Submission, body: dict[str, Any]) -> list[Problem]:
        try:
            request = self._checker.check(body)
        except InvalidRequest as error:
            return list(error.details) or [Problem(error.message, error.param)]
        if request.stream:
            return [Problem("stream must be left out or false in a Job.", "stream")]
        if self._card is None:
            self._card = self._inference.model(request.model)
            submission.model = self._card.id
        if request.model != submission.model:
            return [Problem(f"model is '{printable(request.model)}', and a Job has one model: here '{submission.model}'"
                            ", as its first request has it.", "model")]
        try:
            check_ids(request, self._card)
        except InvalidRequest as error:
            return list(error.details)
        return []

    def _done(self, submission: Submission, what: str) -> Submission:
        found = self._found
        if found.bad:
            submission.close()
            problems = found.told
            if len(found.bad) > len({problem.message.partition(":")[0] for problem in problems}):
                problems = [*problems, Problem(f"All bad {what}, {len(found.bad)} of them: {_ranges(found.bad)}.")]
            raise InvalidRequest.of(problems)
        if not submission.total:
            submission.close()
            raise InvalidRequest("A Job has at least one request.")
        return submission


def _check_shape(whole: LargeObject, both: list[str]) -> None:
    """Raise InvalidRequest unless there are prompts with their model, or requests alone."""
    problems = [Problem(f"{name} must be a list.", name) for name in both if not whole.is_list(name)]
    if len(both) != 1:
        problems.append(Problem("A Job has either model and prompts, or requests.", "requests"))
    elif both == ["prompts"]:
        if "model" not in whole:
            problems.append(Problem("model is required with prompts.", "model"))
        problems += [Problem(f"params must not hold {name}, which stands beside it.", f"params.{name}")
                     for name in ("model", "prompt") if name in whole.members.get("params", {})]
    else:
        problems += [Problem(f"{name} must not stand beside requests, each of which has its own.", name)
                     for name in ("model", "params") if name in whole]
    if problems:
        raise InvalidRequest.of(problems)


def refusals(error: ApiError) -> list[Problem]:
    """Each problem that an error tells of."""
    return list(error.details) or [Problem(error.message, error.param)]


def _text(file: IO[bytes]) -> str:
    """What a file says, without having its bytes in memory too. Raises BadJson."""
    file.seek(0, 2)
    if not file.tell():
        return ""
    file.seek(0)
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise BadJson(f"The body is not valid UTF-8: byte {error.start} can't be read.") from None


def _spool() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)


def _param(where: str, field: str | None) -> str:
    return f"{where.lower()}.{field}" if field else where.lower()


def _same_as(where: str, number: int) -> str:
    return f"line {number}" if where.startswith("Line") else f"requests[{number}]"


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as 1-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
