"""What can be refused about people and keys. The messages are for the person who tried."""
from __future__ import annotations


class AccountError(Exception):
    """Something about people or keys that can't be done."""


class Unknown(AccountError):
    """There is no such thing, or it is somebody else's: the two can't be told apart."""
