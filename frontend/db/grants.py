"""The statements about Grants and requests for more tokens. Whoever changes a Grant has locked the balance first."""
from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from frontend.db.token_records import Grant, TokenRequest
from frontend.db.token_tables import balances, grants, token_requests


def make_balance(connection: Connection, account_id: str) -> None:
    """Have a balance for an account, empty where there was none."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    values = {"account_id": account_id, "granted": 0, "available": 0, "held": 0, "charged": 0}
    connection.execute(dialect.insert(balances).values(values).on_conflict_do_nothing())


def add_granted(connection: Connection, account_id: str, amount: int) -> None:
    """Make a locked balance larger, or with a negative amount smaller."""
    connection.execute(
        update(balances).where(balances.c.account_id == account_id)
        .values(granted=balances.c.granted + amount, available=balances.c.available + amount))


def set_next_expiry(connection: Connection, account_id: str, moment: datetime | None) -> None:
    """Note when somebody has to look at the Grants of a locked balance again."""
    connection.execute(update(balances).where(balances.c.account_id == account_id).values(next_expiry=moment))


def add_grant(connection: Connection, grant: Grant) -> None:
    """Note a Grant."""
    connection.execute(insert(grants).values(vars(grant)))


def grant_of(connection: Connection, grant_id: str) -> Grant | None:
    """A Grant by its id."""
    row = connection.execute(select(*grants.c).where(grants.c.id == grant_id)).one_or_none()
    return Grant(**row._mapping) if row else None


def grants_of(connection: Connection, account_id: str | None, only_open: bool = False) -> list[Grant]:
    """The Grants of an account, or all, oldest first."""
    query = select(*grants.c).order_by(grants.c.given_at, grants.c.id)
    if account_id is not None:
        query = query.where(grants.c.account_id == account_id)
    if only_open:
        query = query.where(grants.c.open)
    return [Grant(**row._mapping) for row in connection.execute(query)]


def spent_by_grants(connection: Connection, account_id: str) -> int:
    """What all Grants of an account say together that was charged to them."""
    query = select(func.coalesce(func.sum(grants.c.spent), 0)).where(grants.c.account_id == account_id)
    return int(connection.execute(query).scalar_one())


def update_grant(connection: Connection, grant_id: str, spent: int, expired: int, is_open: bool) -> None:
    """Note what became of a Grant."""
    connection.execute(
        update(grants).where(grants.c.id == grant_id).values(spent=spent, expired=expired, open=is_open))


def accounts_with_expired_grants(connection: Connection, now: datetime) -> list[str]:
    """The accounts that have an open Grant whose date has passed."""
    query = select(grants.c.account_id).where(grants.c.open, grants.c.expires_at <= now).distinct()
    return list(connection.execute(query).scalars())


def add_request(connection: Connection, request: TokenRequest) -> None:
    """Note a request for more tokens."""
    connection.execute(insert(token_requests).values(vars(request)))


def request_of(connection: Connection, request_id: str) -> TokenRequest | None:
    """A request by its id."""
    row = connection.execute(select(*token_requests.c).where(token_requests.c.id == request_id)).one_or_none()
    return TokenRequest(**row._mapping) if row else None


def requests_of(connection: Connection, account_id: str | None, status: str | None) -> list[TokenRequest]:
    """The requests of an account, or all, of one status, or any, oldest first."""
    query = select(*token_requests.c).order_by(token_requests.c.created_at, token_requests.c.id)
    if account_id is not None:
        query = query.where(token_requests.c.account_id == account_id)
    if status is not None:
        query = query.where(token_requests.c.status == status)
    return [TokenRequest(**row._mapping) for row in connection.execute(query)]


def decide_request(
    connection: Connection, request_id: str, status: str, by: str, at: datetime, note: str | None
) -> bool:
    """Decide an open request. False where somebody has, or there is none: exactly one of several gets True."""
    change = update(token_requests).where(token_requests.c.id == request_id, token_requests.c.status == "open")
    values = {"status": status, "decided_by": by, "decided_at": at, "note": note}
    return connection.execute(change.values(values)).rowcount == 1


def set_request_grant(connection: Connection, request_id: str, grant_id: str) -> None:
    """Note which Grant an approved request led to."""
    connection.execute(update(token_requests).where(token_requests.c.id == request_id).values(grant_id=grant_id))
