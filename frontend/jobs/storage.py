"""The storage of Jobs: uploaded files and shards of Activations, in a local folder or on S3."""
from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import fsspec

from frontend.errors import NotFound, Unavailable

#: Bytes that are read and written at once.
PART = 4 * 2**20
#: How often something is removed at most, where others remove it at the same time.
_TRIES = 5


class Storage:
    """Files by names that may have folders. Threads may share it; a forked process must make its own."""

    def __init__(self, url: str) -> None:
        """`url` is file:///folder or s3://bucket/folder. S3's address and keys are where its tools look for them."""
        options: dict[str, Any] = {"skip_instance_cache": True}
        if url.startswith("s3://"):
            options["use_listings_cache"] = False
        else:
            options["auto_mkdir"] = True
        self._files, self._root = fsspec.core.url_to_fs(url, **options)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write, which is there once the block has ended well. Raises Unavailable."""
        with _reported():
            try:
                with self._files.open(self._path(name), "wb", block_size=2 * PART) as file:
                    yield file
            except FileNotFoundError as error:  # what is missing is what it should be in: the bucket, or the disk
                raise _away() from error

    def save(self, name: str, content: IO[bytes]) -> None:
        """Copy a file's content from where it stands. Raises Unavailable."""
        with self.writing(name) as file:
            shutil.copyfileobj(content, file, PART)

    def read(self, name: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to `end`, in parts. Raises NotFound or Unavailable."""
        for at in range(start, end, PART):
            with _reported():
                yield self._files.cat_file(self._path(name), start=at, end=min(at + PART, end))

    def copy(self, name: str, to: IO[bytes]) -> None:
        """Copy a file to one that is open. Raises NotFound or Unavailable."""
        with _reported(), self._files.open(self._path(name), "rb") as file:
            shutil.copyfileobj(file, to, PART)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; it need not be there. Raises Unavailable."""
        with _reported():
            path = self._path(name)
            for _ in range(_TRIES):
                if not self._files.exists(path):
                    return
                with suppress(FileNotFoundError):  # another removes it too, and each of both may have stopped halfway
                    self._files.rm(path, recursive=True)
            raise _away()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


@contextmanager
def _reported() -> Iterator[None]:
    """The storage's errors as ours. Every file system has its own."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("There is no such file in the storage any more.") from error
    except (NotFound, Unavailable):
        raise
    except Exception as error:
        raise _away() from error


def _away() -> Unavailable:
    return Unavailable("The storage of Jobs does not answer. Try again in a moment.")
