"""API keys: their shape, and the hash that is all we keep."""
from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from frontend.accounts.keys import hash_key, new_key


def test_a_key_is_marked_random_and_checked() -> None:
    keys = [new_key() for _ in range(100)]
    assert len({key.secret for key in keys}) == 100
    for key in keys:
        assert re.fullmatch(r"strata-[0-9A-Za-z]{43}[0-9A-Za-z]{6}", key.secret)
        assert key.secret.startswith(key.prefix)
        assert len(key.prefix) == 13
        assert key.sha256 == hashlib.sha256(key.secret.encode()).hexdigest()
        assert hash_key(key.secret) == key.sha256


@given(st.data())
def test_a_changed_character_is_noticed_without_a_lookup(data: st.DataObject) -> None:
    secret = new_key().secret
    place = data.draw(st.integers(7, len(secret) - 1))
    other = data.draw(st.sampled_from("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"))
    changed = secret[:place] + other + secret[place + 1 :]
    assert (hash_key(changed) is None) is (changed != secret)


@given(st.text())
def test_what_is_no_key_has_no_hash(text: str) -> None:
    assert hash_key(text) is None


def test_what_looks_like_a_key_is_none_either() -> None:
    secret = new_key().secret
    for text in (secret + "\n", " " + secret, secret + "0", secret[:-1], secret.upper(), "sk" + secret[6:]):
        assert hash_key(text) is None
