"""Passwords: hashed with argon2id, never stored."""
from __future__ import annotations

import unicodedata

from argon2 import PasswordHasher

from frontend.accounts.errors import AccountError

#: Characters. The shortest that people may choose; the longest is there so that nobody makes us hash megabytes.
SHORTEST, LONGEST = 8, 1024
_hasher = PasswordHasher()


def check_choice(password: str) -> None:
    """Raises AccountError for a password that people can't choose."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise AccountError(f"A password has {SHORTEST} to {LONGEST} characters.")


def hash_password(password: str) -> str:
    """The hash to store, with its parameters and salt in it. Keyboards write one character in several ways (é), so a
    password is hashed in Unicode's form NFKC."""
    return _hasher.hash(unicodedata.normalize("NFKC", password))
