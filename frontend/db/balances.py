"""The statements that move tokens: into a balance, into holds, out of them, into the ledger.

Each runs inside a caller's short write transaction. Whoever locks a hold and a balance locks the hold first.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, delete, func, insert, or_, select, update

from frontend.db.spend import spend_limits_on
from frontend.db.token_records import Balance, OpenHold, UsageRecord
from frontend.db.token_tables import balances, holds, ledger, usage_records

_BALANCE = (balances.c.granted, balances.c.available, balances.c.held, balances.c.charged)
_OF = balances.c.account_id == bindparam("of")
_NOW = bindparam("now", type_=balances.c.next_expiry.type)
_AMOUNT = bindparam("amount", type_=BigInteger)
# Built once: these run for each request.
_RESERVE = (
    update(balances)
    .where(_OF, balances.c.available >= _AMOUNT, or_(balances.c.next_expiry.is_(None), balances.c.next_expiry > _NOW))
    .values(available=balances.c.available - _AMOUNT, held=balances.c.held + _AMOUNT)
    .returning(balances.c.available, spend_limits_on(bindparam("model")).label("spend_limits"))
)
_CHARGED = bindparam("charge", type_=BigInteger)
_RELEASE = (
    update(balances).where(_OF)
    .values(available=balances.c.available + _AMOUNT - _CHARGED, held=balances.c.held - _AMOUNT,
            charged=balances.c.charged + _CHARGED)
    .returning(balances.c.available)
)
_ADD_HOLD = insert(holds)
_CLOSE = delete(holds).where(holds.c.id == bindparam("hold")).returning(*holds.c)
_RENEW = (
    update(holds).where(holds.c.id == bindparam("hold"))
    .values(beat=holds.c.beat + 1, produced=bindparam("now_produced", type_=BigInteger))
)
_ADD_USAGE, _ADD_ENTRY = insert(usage_records), insert(ledger)


def balance_of(connection: Connection, account_id: str) -> Balance:
    """An account's tokens; nothing of everything where it was never granted any."""
    row = connection.execute(select(*_BALANCE).where(_OF), {"of": account_id}).one_or_none()
    return Balance(*row) if row else Balance(0, 0, 0, 0)


def all_balances(connection: Connection) -> dict[str, Balance]:
    """The tokens of every account that was ever granted any."""
    return {row.account_id: Balance(*row[1:]) for row in connection.execute(select(balances.c.account_id, *_BALANCE))}


def lock_balance(connection: Connection, account_id: str) -> tuple[Balance, datetime | None] | None:
    """The tokens of an account, which nobody else can move until the transaction ends; and when a Grant expires."""
    query = select(*_BALANCE, balances.c.next_expiry).where(_OF).with_for_update()
    row = connection.execute(query, {"of": account_id}).one_or_none()
    return (Balance(*row[:4]), row.next_expiry) if row else None


def reserve(
    connection: Connection, account_id: str, amount: int, model: str, now: datetime
) -> tuple[int, bool] | None:
    """Move `amount` from available to held. Says what is left, and whether the model is under a Spend limit.

    None, and nothing moved, where so much is not there, or where a Grant may have expired since somebody looked: that
    comes first.
    """
    row = connection.execute(
        _RESERVE, {"of": account_id, "amount": amount, "model": model, "now": now}).one_or_none()
    return (row.available, row.spend_limits > 0) if row else None


def release(connection: Connection, account_id: str, amount: int, charge: int) -> int:
    """End a hold of `amount`: charge a part of it, make the rest available, and say what is available then."""
    left: int = connection.execute(_RELEASE, {"of": account_id, "amount": amount, "charge": charge}).scalar_one()
    return left


def add_hold(connection: Connection, hold: OpenHold) -> None:
    """Note a hold, whose tokens `reserve` moved."""
    connection.execute(_ADD_HOLD, vars(hold))


def close_hold(connection: Connection, hold_id: str, beat: int | None = None) -> OpenHold | None:
    """Take a hold out of the table; None where somebody has settled it, or renewed it since `beat`."""
    close = _CLOSE if beat is None else _CLOSE.where(holds.c.beat == beat)
    row = connection.execute(close, {"hold": hold_id}).one_or_none()
    return OpenHold(**row._mapping) if row else None


def renew_holds(connection: Connection, produced: Iterable[tuple[str, int | None]]) -> int:
    """Renew leases by id, note how many completion tokens there are, and say how many of the holds are not settled."""
    # Always in one order, so that two processes can't lock the same rows crosswise.
    rows: list[dict[str, Any]] = [{"hold": hold, "now_produced": tokens} for hold, tokens in sorted(produced)]
    return connection.execute(_RENEW, rows).rowcount


def open_among(connection: Connection, hold_ids: Collection[str]) -> set[str]:
    """Those of some holds that are not settled."""
    return set(connection.execute(select(holds.c.id).where(holds.c.id.in_(hold_ids))).scalars())


def beats(connection: Connection) -> dict[str, int]:
    """Every open hold by its id, and how often its lease was renewed."""
    return {row.id: row.beat for row in connection.execute(select(holds.c.id, holds.c.beat))}


def open_holds(connection: Connection, account_id: str | None = None) -> list[OpenHold]:
    """The open holds of an account, or all."""
    query = select(*holds.c).order_by(holds.c.created_at, holds.c.id)
    if account_id is not None:
        query = query.where(holds.c.account_id == account_id)
    return [OpenHold(**row._mapping) for row in connection.execute(query)]


def add_usage(connection: Connection, record: UsageRecord) -> None:
    """Note what a request used."""
    connection.execute(_ADD_USAGE, {**vars(record), "day": record.at.strftime("%Y-%m-%d")})


def add_entry(connection: Connection, account_id: str, at: datetime, kind: str, amount: int, subject: str) -> None:
    """Write into the ledger: `grant` (+), `expiry` (−) or `charge` (−)."""
    connection.execute(_ADD_ENTRY, {"account_id": account_id, "at": at, "kind": kind, "amount": amount,
                                    "subject": subject})


def ledger_sums(connection: Connection, account_id: str) -> dict[str, int]:
    """The sum of an account's ledger by kind."""
    query = select(ledger.c.kind, func.sum(ledger.c.amount)).where(ledger.c.account_id == account_id)
    return {kind: int(total) for kind, total in connection.execute(query.group_by(ledger.c.kind))}


def held_in_holds(connection: Connection, account_id: str) -> int:
    """The sum of an account's open holds."""
    query = select(func.coalesce(func.sum(holds.c.amount), 0)).where(holds.c.account_id == account_id)
    return int(connection.execute(query).scalar_one())
