"""The statements that move tokens: into a balance, into holds, out of them, into the ledger.

Each runs inside a caller's short write transaction. Whoever locks a hold and a balance locks the hold first.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, String, bindparam, delete, func, insert, or_, select, update

from frontend.db.prepared import Prepared
from frontend.db.spend import spend_limits_on
from frontend.db.token_records import Balance, ClosedHold, OpenHold, UsageRecord
from frontend.db.token_tables import balances, holds, ledger, usage_records

_BALANCE = (balances.c.granted, balances.c.available, balances.c.held, balances.c.charged)
_OF = balances.c.account_id == bindparam("of")
_NOW = bindparam("now", type_=balances.c.next_expiry.type)
_AMOUNT, _CHARGE = bindparam("amount", type_=BigInteger), bindparam("charge", type_=BigInteger)
_SETTLED = [holds.c[field.name] for field in fields(ClosedHold)]
# These run for each request.
_RESERVE = Prepared(
    update(balances)
    .where(_OF, balances.c.available >= _AMOUNT, or_(balances.c.next_expiry.is_(None), balances.c.next_expiry > _NOW))
    .values(available=balances.c.available - _AMOUNT, held=balances.c.held + _AMOUNT)
    .returning(balances.c.available, spend_limits_on(bindparam("model", type_=String)))
)
_RELEASE = Prepared(
    update(balances).where(_OF)
    .values(available=balances.c.available + _AMOUNT - _CHARGE, held=balances.c.held - _AMOUNT,
            charged=balances.c.charged + _CHARGE)
    .returning(balances.c.available)
)
_ADD_HOLD = Prepared(insert(holds), [column.name for column in holds.c])
_DELETE = delete(holds).where(holds.c.id == bindparam("hold", type_=String)).returning(*_SETTLED)
_CLOSE = Prepared(_DELETE)
_CLOSE_STILL = Prepared(_DELETE.where(holds.c.beat == bindparam("seen", type_=BigInteger)))
_ADD_USAGE = Prepared(insert(usage_records), [column.name for column in usage_records.c])
_ADD_ENTRY = Prepared(insert(ledger).inline(), ["account_id", "at", "kind", "amount", "subject"])
_RENEW = (
    update(holds).where(holds.c.id == bindparam("hold"))
    .values(beat=holds.c.beat + 1, produced=bindparam("now_produced", type_=BigInteger))
)


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
    rows = _RESERVE(connection, of=account_id, amount=amount, model=model, now=now)
    return (rows[0][0], rows[0][1] > 0) if rows else None


def release(connection: Connection, account_id: str, amount: int, charge: int) -> int:
    """End a hold of `amount`: charge a part of it, make the rest available, and say what is available then."""
    ((left,),) = _RELEASE(connection, of=account_id, amount=amount, charge=charge)
    return int(left)


def add_hold(connection: Connection, hold: OpenHold) -> None:
    """Note a hold, whose tokens `reserve` moved."""
    _ADD_HOLD(connection, **vars(hold))


def close_hold(connection: Connection, hold_id: str, beat: int | None = None) -> ClosedHold | None:
    """Take a hold out of the table; None where somebody has settled it, or renewed it since `beat`."""
    rows = (_CLOSE(connection, hold=hold_id) if beat is None
            else _CLOSE_STILL(connection, hold=hold_id, seen=beat))
    return ClosedHold(*rows[0]) if rows else None


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
    _ADD_USAGE(connection, **vars(record), day=record.at.strftime("%Y-%m-%d"))


def add_entry(connection: Connection, account_id: str, at: datetime, kind: str, amount: int, subject: str) -> None:
    """Write into the ledger: `grant` (+), `expiry` (−) or `charge` (−)."""
    _ADD_ENTRY(connection, account_id=account_id, at=at, kind=kind, amount=amount, subject=subject)


def ledger_sums(connection: Connection, account_id: str) -> dict[str, int]:
    """The sum of an account's ledger by kind."""
    query = select(ledger.c.kind, func.sum(ledger.c.amount)).where(ledger.c.account_id == account_id)
    return {kind: int(total) for kind, total in connection.execute(query.group_by(ledger.c.kind))}


def holds_of(connection: Connection, prefix: str) -> dict[str, int]:
    """The open holds whose ids begin so, and the tokens in each. There are never many holds."""
    query = select(holds.c.id, holds.c.amount).where(holds.c.id.startswith(prefix, autoescape=True))
    return {row.id: row.amount for row in connection.execute(query)}


def held_in_holds(connection: Connection, account_id: str) -> int:
    """The sum of an account's open holds."""
    query = select(func.coalesce(func.sum(holds.c.amount), 0)).where(holds.c.account_id == account_id)
    return int(connection.execute(query).scalar_one())
