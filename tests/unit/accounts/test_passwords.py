"""Passwords take memory while they are hashed, so many who come at once take turns."""
from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from argon2 import PasswordHasher

from frontend.accounts import passwords


class Watched(PasswordHasher):
    """Argon2 in small, which notes how many hash at once."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self._lock, self._now, self.most = threading.Lock(), 0, 0

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.01)
        try:
            return bool(super().verify(hash, password))
        finally:
            with self._lock:
                self._now -= 1


def test_few_passwords_are_checked_at_once_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setattr(passwords, "_hasher", watched)
    known = passwords.hash_password("correct horse")
    with ThreadPoolExecutor(32) as pool:
        right = list(pool.map(lambda number: passwords.is_password(known, "correct horse" if number % 2 else "no"),
                              range(64)))
    assert right == [False, True] * 32
    assert watched.most == 4
