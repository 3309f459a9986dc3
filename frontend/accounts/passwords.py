"""Passwords: hashed with argon2id, never stored."""
from __future__ import annotations

from argon2 import PasswordHasher

_hasher = PasswordHasher()


def hash_password(password: str) -> str:
    """The hash to store, with its parameters and salt in it."""
    return _hasher.hash(password)
