"""The storage of Jobs, in a folder and on an S3 that speaks its protocol on this machine."""
from __future__ import annotations

import io
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from frontend.accounts.audit import SYSTEM
from frontend.accounts.service import create_account
from frontend.db import Database
from frontend.errors import NotFound, Unavailable
from frontend.jobs.files import Files
from frontend.jobs.storage import PART, Storage


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3."""
    from moto.server import ThreadedMotoServer  # it takes seconds to import

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "folder":
        return Storage(f"file://{tmp_path / 'a folder'}")
    import boto3

    for name, value in (("AWS_ENDPOINT_URL", request.getfixturevalue("s3")), ("AWS_ACCESS_KEY_ID", "a"),
                        ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{secrets.token_hex(4)}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return Storage(f"s3://{bucket}/strata")


def test_what_is_written_can_be_read_in_ranges(storage: Storage) -> None:
    content = secrets.token_bytes(2 * PART + 12_345)
    with storage.writing("jobs/one/a.safetensors") as file:
        for at in range(0, len(content), 1_000_000):
            file.write(content[at : at + 1_000_000])
    whole = len(content)
    for start, end in ((0, whole), (0, 1), (PART - 1, PART + 1), (5, 2 * PART + 5), (whole - 1, whole)):
        parts = list(storage.read("jobs/one/a.safetensors", start, end))
        assert b"".join(parts) == content[start:end]
        assert max(map(len, parts)) <= PART
    to = io.BytesIO()
    storage.copy("jobs/one/a.safetensors", to)
    assert to.getvalue() == content


def test_a_folder_is_removed_with_all_that_is_in_it(storage: Storage) -> None:
    for name in ("jobs/one/a", "jobs/one/b", "jobs/other/a"):
        storage.save(name, io.BytesIO(b"x"))
    storage.remove("jobs/one")
    storage.remove("jobs/one")
    for name in ("jobs/one/a", "jobs/one/b", "jobs/never"):
        with pytest.raises(NotFound):
            list(storage.read(name, 0, 1))
    assert b"".join(storage.read("jobs/other/a", 0, 1)) == b"x"


def test_a_bucket_that_is_not_there_is_a_storage_that_is_away(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("AWS_ENDPOINT_URL", s3), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"),
                        ("AWS_DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(Unavailable):
        Storage("s3://never-made/strata").save("a", io.BytesIO(b"x"))


def test_two_who_remove_a_folder_leave_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is faster with one of two files, and stops there because we were faster with another."""
    for name in ("jobs/one/a", "jobs/one/b"):
        storage.save(name, io.BytesIO(b"x"))
    remove, times = storage._files.rm, []

    def one_is_gone(path: str, recursive: bool) -> None:
        times.append(path)
        if len(times) == 1:
            remove(f"{path}/a")
            raise FileNotFoundError(path)
        remove(path, recursive=recursive)

    monkeypatch.setattr(storage._files, "rm", one_is_gone)
    storage.remove("jobs/one")
    with pytest.raises(NotFound):
        list(storage.read("jobs/one/b", 0, 1))


def test_an_upload_that_fails_leaves_nothing(database: Database, tmp_path: Path) -> None:
    account = create_account(database, SYSTEM, "ada@example.org").id

    class BreaksOff(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError("no space left on device")
            return super().read(1)

    files = Files(database, Storage(f"file://{tmp_path / 'storage'}"), 30)
    with pytest.raises(Unavailable):
        files.add(account, SYSTEM, "a.jsonl", BreaksOff(b"xyz"))
    assert files.page(account, 9, None, oldest=False) == []
    assert [path for path in (tmp_path / "storage").rglob("*") if path.is_file()] == []


def test_a_storage_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    away = Storage(f"file://{tmp_path / 'file'}")  # a file, where there should be a folder
    with pytest.raises(Unavailable), away.writing("a") as file:
        file.write(b"x")
