"""The statements about files that people uploaded."""
from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, tuple_

from frontend.db.job_records import StoredFile
from frontend.db.job_tables import files

_ORDER = (files.c.created_at, files.c.id)


def add(connection: Connection, file: StoredFile) -> None:
    """Note a file, whose content is in the storage."""
    connection.execute(insert(files).values(vars(file)))


def file_of(connection: Connection, file_id: str, account_id: str) -> StoredFile | None:
    """An account's file by its id."""
    query = select(*files.c).where(files.c.id == file_id, files.c.account_id == account_id)
    row = connection.execute(query).one_or_none()
    return StoredFile(**row._mapping) if row else None


def files_of(connection: Connection, account_id: str, limit: int, after: str | None, oldest: bool) -> list[StoredFile]:
    """An account's files, the newest first or the oldest; those that come after one."""
    query = select(*files.c).where(files.c.account_id == account_id).limit(limit)
    query = query.order_by(*(column.asc() if oldest else column.desc() for column in _ORDER))
    if after is not None:
        known = connection.execute(
            select(*_ORDER).where(files.c.id == after, files.c.account_id == account_id)).one_or_none()
        if known is None:
            return []
        place = tuple_(*known, types=[column.type for column in _ORDER])
        query = query.where(tuple_(*_ORDER) > place if oldest else tuple_(*_ORDER) < place)
    return [StoredFile(**row._mapping) for row in connection.execute(query)]


def remove(connection: Connection, file_id: str) -> bool:
    """Forget a file. Whether it was there."""
    return connection.execute(delete(files).where(files.c.id == file_id)).rowcount == 1


def overdue(connection: Connection, now: datetime) -> list[StoredFile]:
    """The files whose time is over."""
    return [StoredFile(**row._mapping) for row in connection.execute(
        select(*files.c).where(files.c.expires_at <= now))]
