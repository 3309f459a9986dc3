"""Passwords: hashed with argon2id, never stored."""
from __future__ import annotations

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_hasher = PasswordHasher()


def hash_password(password: str) -> str:
    """The hash to store, with its parameters and salt in it."""
    return _hasher.hash(password)


def matches(password_hash: str, password: str) -> bool:
    """Whether the password is the one of the hash."""
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False
