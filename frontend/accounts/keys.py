"""API keys: how they look, and the hash by which we know them.

`strata-` + 43 random base62 characters (256 bits) + 6 characters of checksum. Only the SHA-256 is stored: a random key
of that size needs no slow hash. The checksum tells a typing error from an unknown key without a question to the
database, and lets secret scanners recognize keys that leaked.
"""
from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib
from dataclasses import dataclass

MARK = "strata-"
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM = 43
_CHECKSUM = 6
_SHAPE = re.compile(rf"{MARK}[0-9A-Za-z]{{{_RANDOM + _CHECKSUM}}}")


@dataclass(frozen=True)
class NewKey:
    """A fresh key. The secret is shown once and not kept."""

    secret: str
    prefix: str
    sha256: str


def new_key() -> NewKey:
    """Make a key from the system's randomness."""
    body = random_text(_RANDOM)
    secret = MARK + body + _checksum(body)
    return NewKey(secret, MARK + body[:6], _sha256(secret))


def hash_key(presented: str) -> str | None:
    """The hash to look a key up by, or None for what can't be a key."""
    if not _SHAPE.fullmatch(presented):
        return None
    body = presented[len(MARK) : -_CHECKSUM]
    if not secrets.compare_digest(_checksum(body), presented[-_CHECKSUM:]):
        return None
    return _sha256(presented)


def random_text(length: int) -> str:
    """Random base62 characters, for keys and for the ids of rows and requests."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _checksum(body: str) -> str:
    """CRC-32 in base62, six digits, which hold 32 bits."""
    rest, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM):
        rest, digit = divmod(rest, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
