"""Requests for more tokens: made by a person, decided by an admin, once."""
from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection

from frontend.accounts.audit import Action, Actor, record
from frontend.accounts.keys import random_text
from frontend.budgets.grants import MOST, add_grant
from frontend.db import Database
from frontend.db import grants as rows
from frontend.db.token_records import Grant, TokenRequest
from frontend.errors import Conflict, InvalidRequest, NotFound

MAX_REASON = 2000
STATUSES = ("open", "approved", "rejected")


def ask_for_tokens(database: Database, by: Actor, account_id: str, amount: int, reason: str) -> TokenRequest:
    """Ask for more tokens. Raises InvalidRequest."""
    if not 1 <= amount <= MOST:
        raise InvalidRequest(f"A request is for 1 to {MOST} tokens.", "amount")
    if not reason.strip() or len(reason) > MAX_REASON:
        raise InvalidRequest(f"A request has a reason of 1 to {MAX_REASON} characters.", "reason")
    request = TokenRequest(f"ask_{random_text(20)}", account_id, amount, reason, datetime.now(UTC), "open", None, None,
                           None, None)
    with database.write() as connection:
        rows.add_request(connection, request)
        record(connection, by, Action.REQUEST_MAKE, request.id, account_id, {"tokens": amount})
    return request


def approve_request(
    database: Database, by: Actor, request_id: str, amount: int | None = None, note: str = "",
    expires_at: datetime | None = None,
) -> Grant:
    """Approve an open request with a Grant of what it asks for, or of another amount.

    Raises NotFound, or Conflict where it was decided before: of several at once, one gets its Grant.
    """
    with database.write() as connection:
        request = _decide(connection, by, request_id, "approved", note or None)
        grant = add_grant(connection, by, request.account_id, request.amount if amount is None else amount,
                          note or request.reason[:1000], expires_at)
        rows.set_request_grant(connection, request.id, grant.id)
        record(connection, by, Action.REQUEST_APPROVE, request.id, request.account_id,
               {"grant": grant.id, "tokens": grant.amount})
    return grant


def reject_request(database: Database, by: Actor, request_id: str, note: str) -> TokenRequest:
    """Reject an open request with a note that says why. Raises InvalidRequest, NotFound, Conflict."""
    if not note.strip() or len(note) > MAX_REASON:
        raise InvalidRequest(f"A rejection has a note of 1 to {MAX_REASON} characters.", "note")
    with database.write() as connection:
        request = _decide(connection, by, request_id, "rejected", note)
        record(connection, by, Action.REQUEST_REJECT, request.id, request.account_id, {"note": note})
    return request


def list_requests(database: Database, account_id: str | None = None, status: str | None = None) -> list[TokenRequest]:
    """The requests of an account, or all, of one status, or any, oldest first."""
    with database.read() as connection:
        return rows.requests_of(connection, account_id, status)


def _decide(connection: Connection, by: Actor, request_id: str, status: str, note: str | None) -> TokenRequest:
    decided = rows.decide_request(connection, request_id, status, by.name, datetime.now(UTC), note)
    request = rows.request_of(connection, request_id)
    if request is None:
        raise NotFound(f"There is no request {request_id}.")
    if not decided:
        raise Conflict(f"The request {request_id} was {request.status} before, by {request.decided_by}.")
    return request
