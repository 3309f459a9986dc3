"""A person's files: those that were uploaded for batches, and those that hold what batches brought.

The latter are not stored: they are the results of a Job in the form of a file, and as old as they.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import IO

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.keys import random_text
from frontend.db import Database
from frontend.db import job_files as rows
from frontend.db import jobs as job_rows
from frontend.db.job_records import Job, StoredFile
from frontend.errors import InvalidRequest, NotFound, Unavailable
from frontend.jobs.results import batch_line, expired_lines, results
from frontend.jobs.service import NO_PLACE
from frontend.jobs.storage import PART, Storage

_ID, _OUTPUT, _ERRORS = "file-", "file-output-", "file-errors-"


@dataclass(frozen=True)
class File:
    """A file as people see it. `purpose` is batch, or batch_output."""

    id: str
    name: str
    bytes: int
    purpose: str
    created_at: datetime
    expires_at: datetime


def output_of(job: Job) -> str | None:
    """The id of the file of what a batch brought, once it has ended with any."""
    return _OUTPUT + job.id.partition("_")[2] if job.final and job.completed else None


def errors_of(job: Job) -> str | None:
    """The same for its errors."""
    late = job.status == "expired" and job.completed + job.failed < job.total
    return _ERRORS + job.id.partition("_")[2] if job.final and (job.failed or late) else None


class Files:
    """All of them. Threads may share it."""

    def __init__(self, database: Database, storage: Storage, keep_days: int) -> None:
        self._database, self._storage = database, storage
        self._keep = timedelta(days=keep_days)

    def add(
        self, account_id: str, by: Actor, name: str, content: IO[bytes], keep: timedelta | None = None
    ) -> File:
        """Store a file. Raises Unavailable."""
        content.seek(0, 2)
        size, now = content.tell(), datetime.now(UTC)
        content.seek(0)
        until = now + (self._keep if keep is None else keep)
        file = StoredFile(f"{_ID}{random_text(24)}", account_id, name, size, now, until)
        with self._database.write() as connection:  # first, so that whatever gets into the storage is erased in time
            rows.add(connection, file)
        try:
            self._storage.save(_path(file.id), content)
            with self._database.write() as connection:
                record(connection, by, Action.FILE_ADD, file.id, account_id, {"bytes": size})
        except Exception:
            with suppress(Unavailable):
                self._storage.remove(_path(file.id))
                with self._database.write() as connection:
                    rows.remove(connection, file.id)
            raise
        return _uploaded(file)

    def show(self, file_id: str, account_id: str) -> File:
        """One file. Raises NotFound."""
        if job := self._job(file_id, account_id):
            return _of_job(job, file_id)
        with self._database.read() as connection:
            file = rows.file_of(connection, file_id, account_id)
        if file is None:
            raise NotFound(f"There is no file {file_id!r}.")
        return _uploaded(file)

    def page(self, account_id: str, limit: int, after: str | None, oldest: bool) -> list[File]:
        """The files that were uploaded, the newest or the oldest first; those that come after one. Raises
        InvalidRequest where that is not there."""
        with self._database.read() as connection:
            if after is not None and rows.file_of(connection, after, account_id) is None:
                raise InvalidRequest(NO_PLACE, "after")
            return [_uploaded(file) for file in rows.files_of(connection, account_id, limit, after, oldest)]

    def read(self, file_id: str, account_id: str) -> Iterator[bytes]:
        """What is in a file, in parts. Raises NotFound at once, or Unavailable."""
        file = self.show(file_id, account_id)
        if job := self._job(file_id, account_id):
            failed = file_id.startswith(_ERRORS)
            lines = (part for result in results(self._database, job.id, failed=failed)
                     for part in batch_line(job.id, result))
            late = expired_lines(self._database, job.id) if failed and job.status == "expired" else iter(())
            return joined(chain(lines, late))
        return self._storage.read(_path(file_id), 0, file.bytes)

    def copy(self, file_id: str, account_id: str, to: IO[bytes]) -> None:
        """Copy an uploaded file to one that is open. Raises NotFound or Unavailable."""
        with self._database.read() as connection:
            file = rows.file_of(connection, file_id, account_id)
        if file is None:
            raise NotFound(f"There is no file {file_id!r} that was uploaded.", "input_file_id")
        self._storage.copy(_path(file_id), to)

    def delete(self, file_id: str, account_id: str, by: Actor) -> None:
        """Erase an uploaded file. Jobs that were made from it go on. Raises NotFound or Unavailable."""
        with self._database.read() as connection:
            file = rows.file_of(connection, file_id, account_id)
        if file is None:
            raise NotFound(f"There is no file {file_id!r} that was uploaded; those of batches go with them.")
        self._storage.remove(_path(file_id))
        with self._database.write() as connection:
            if rows.remove(connection, file_id):
                record(connection, by, Action.FILE_ERASE, file_id, account_id)

    def _job(self, file_id: str, account_id: str) -> Job | None:
        for mark, of in ((_OUTPUT, output_of), (_ERRORS, errors_of)):
            if file_id.startswith(mark):
                with self._database.read() as connection:
                    job = job_rows.job_of(connection, f"job_{file_id.removeprefix(mark)}", account_id)
                return job if job is not None and job.batch is not None and of(job) == file_id else None
        return None


def _path(file_id: str) -> str:
    return f"files/{file_id}"


def _uploaded(file: StoredFile) -> File:
    return File(file.id, file.name, file.bytes, "batch", file.created_at, file.expires_at)


def _of_job(job: Job, file_id: str) -> File:
    assert job.finished_at is not None
    name, size = ("errors", job.error_bytes) if file_id.startswith(_ERRORS) else ("output", job.output_bytes)
    return File(file_id, f"{job.id.replace('job_', 'batch_')}_{name}.jsonl", size, "batch_output", job.finished_at,
                job.expires_at)


def joined(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of some size: each write to a socket costs more than a line, and copies its part."""
    small: list[bytes] = []
    size = 0
    for part in parts:
        small.append(part)
        size += len(part)
        if size >= PART // 16:
            if len(part) <= PART:
                yield b"".join(small)
            else:
                if small[:-1]:
                    yield b"".join(small[:-1])
                for start in range(0, len(part), PART):
                    yield part[start : start + PART]
            small, size = [], 0
    if small:
        yield b"".join(small)
