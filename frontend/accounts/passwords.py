"""Passwords: hashed with argon2id, never stored."""
from __future__ import annotations

import threading
import unicodedata
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from frontend.accounts.errors import AccountError

#: Characters. The shortest that people may choose; the longest is there so that nobody makes us hash megabytes.
SHORTEST, LONGEST = 8, 1024
_hasher = PasswordHasher()
#: A hash takes 64 MiB while it is made. So many are made at once in a process; whoever signs in besides waits a moment.
_turn = threading.BoundedSemaphore(4)


def check_choice(password: str) -> None:
    """Raises AccountError for a password that people can't choose."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise AccountError(f"A password has {SHORTEST} to {LONGEST} characters.")


def hash_password(password: str) -> str:
    """The hash to store, with its parameters and salt in it. Keyboards write one character in several ways (é), so a
    password is hashed in Unicode's form NFKC."""
    with _turn:
        return _hasher.hash(unicodedata.normalize("NFKC", password))


def is_password(password_hash: str | None, password: str) -> bool:
    """Whether a password is the one of a hash. It takes as long where there is no hash, so that nobody learns who has
    an account."""
    if len(password) > LONGEST:
        return False
    try:
        with _turn:
            right = _hasher.verify(password_hash or _nobodys_hash(), unicodedata.normalize("NFKC", password))
    except (VerificationError, InvalidHashError):
        return False
    return right and password_hash is not None


def is_outdated(password_hash: str) -> bool:
    """Whether a hash was made with weaker parameters than ours are now."""
    return _hasher.check_needs_rehash(password_hash)


@cache
def _nobodys_hash() -> str:
    return _hasher.hash("")
