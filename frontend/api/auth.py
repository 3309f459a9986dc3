"""Who calls: the API key in the Authorization header, checked against the database for each request."""
from __future__ import annotations

import structlog
from flask import request

from frontend.accounts.api_keys import check_key
from frontend.accounts.audit import Actor
from frontend.accounts.caller import Caller
from frontend.api.parts import parts
from frontend.api.quota import admit
from frontend.errors import InvalidApiKey, PermissionDenied

#: The same for a missing, malformed, unknown, expired and revoked key, so that it says nothing about other keys.
MESSAGE = "The API key is missing or not valid. Send a key of yours as 'Authorization: Bearer strata-…'."


def require_caller(scope: str | None = None) -> Caller:
    """The caller of the current request, which is counted. Raises InvalidApiKey, RateLimited, or PermissionDenied for a
    key without `scope`."""
    scheme, _, presented = request.headers.get("Authorization", "").strip().partition(" ")
    caller = check_key(parts().database, presented.strip()) if scheme.lower() == "bearer" else None
    if caller is None:
        raise InvalidApiKey(MESSAGE)
    structlog.contextvars.bind_contextvars(account_id=caller.account_id, key_id=caller.key_id)
    admit(caller)
    if scope is not None and scope not in caller.scopes:
        raise PermissionDenied(f"This API key does not have the scope '{scope}'.")
    return caller


def actor(caller: Caller) -> Actor:
    """Who acts, for the audit log: the account of the key."""
    return Actor(caller.account_id, request.remote_addr or "unknown")
