"""The results of Jobs as people get them: a line of JSON for each, in the form of Jobs or in that of batches."""
from __future__ import annotations

from collections.abc import Iterator

import orjson

from frontend.db import Database
from frontend.db import job_work as rows
from frontend.db.job_records import Result

#: The most results and, beyond the first, bytes that are read at once.
PAGE_ROWS, PAGE_BYTES = 500, 2**20


def job_line(result: Result) -> tuple[bytes, ...]:
    """The parts of one line of GET /v1/jobs/{id}/results. A body of megabytes is not copied."""
    head = orjson.dumps({"custom_id": result.custom_id, "index": result.place, "status": result.status})[:-1]
    if result.code is None:
        return head, b',"response":', result.body, b"}\n"
    return head, b",", result.body[1:], b"\n"  # it is {"error": …}


def batch_line(job_id: str, result: Result) -> tuple[bytes, ...]:
    """The parts of one line of a batch's output or error file, as OpenAI has them."""
    head = orjson.dumps({"id": _line_id(job_id, result.place), "custom_id": result.custom_id})
    response = orjson.dumps({"status_code": result.status, "request_id": result.request_id})
    return head[:-1], b',"response":', response[:-1], b',"body":', result.body, b'},"error":null}\n'


def expired_lines(database: Database, job_id: str) -> Iterator[bytes]:
    """Lines of a batch's error file for the requests that did not run in time, as OpenAI has them."""
    after = -1
    while True:
        with database.read() as connection:
            page = rows.left_page(connection, job_id, after, PAGE_ROWS)
        if not page:
            return
        for after, custom_id in page:
            yield orjson.dumps({
                "id": _line_id(job_id, after), "custom_id": custom_id, "response": None,
                "error": {"code": "batch_expired", "message": "This request could not be executed before the "
                                                              "completion window expired."}}) + b"\n"


def results(database: Database, job_id: str, after: int = -1, failed: bool | None = None) -> Iterator[Result]:
    """The results after an index, in the order of submission: all, or only those that failed or did not.

    Read in pages, so that no transaction stays open and memory does not grow.
    """
    while True:
        with database.read() as connection:
            page = rows.results_page(connection, job_id, after, rows=PAGE_ROWS, size=PAGE_BYTES, failed=failed)
        if not page:
            return
        after = page[-1].place
        page.reverse()
        while page:  # what has been sent must not stand in memory while more is read
            yield page.pop()


def _line_id(job_id: str, place: int) -> str:
    return f"batch_req_{job_id.partition('_')[2]}_{place}"
