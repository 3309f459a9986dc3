"""The statements about requests that people saved of the Workbench."""
from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from frontend.db.records import SavedRequest
from frontend.db.web_tables import saved_requests


def save(connection: Connection, saved: SavedRequest) -> None:
    """Keep a request."""
    connection.execute(insert(saved_requests).values(vars(saved)))


def count(connection: Connection, account_id: str) -> int:
    """How many an account keeps."""
    query = select(func.count()).where(saved_requests.c.account_id == account_id)
    return int(connection.execute(query).scalar_one())


def names_of(connection: Connection, account_id: str) -> dict[str, str]:
    """The names of what an account keeps by their ids, the newest first."""
    query = select(saved_requests.c.id, saved_requests.c.name).where(saved_requests.c.account_id == account_id)
    query = query.order_by(saved_requests.c.created_at.desc(), saved_requests.c.id)
    return {row.id: row.name for row in connection.execute(query)}


def saved(connection: Connection, account_id: str, saved_id: str) -> SavedRequest | None:
    """One of them."""
    query = select(*saved_requests.c).where(saved_requests.c.account_id == account_id, saved_requests.c.id == saved_id)
    row = connection.execute(query).one_or_none()
    return SavedRequest(**row._mapping) if row else None


def forget(connection: Connection, account_id: str, saved_id: str) -> bool:
    """Forget one of them. False where there is none."""
    statement = delete(saved_requests).where(
        saved_requests.c.account_id == account_id, saved_requests.c.id == saved_id)
    return connection.execute(statement).rowcount == 1
