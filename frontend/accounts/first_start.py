"""What a new installation needs: an admin's account, and a key and tokens to try the API with."""
from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from frontend.accounts.api_keys import create_key, knows_key, list_keys, revoke_key
from frontend.accounts.audit import SYSTEM
from frontend.accounts.errors import AccountError, Unknown
from frontend.accounts.service import create_account, find_account
from frontend.budgets.grants import give_first_grant
from frontend.db import Database
from frontend.db.records import Account

ADMIN = "admin@localhost"
#: What the demo key may use.
DEMO_TOKENS = 10_000_000
_DEMO = "demo"


def ensure_admin(database: Database) -> Account:
    """The first admin's account, made when it is missing. It has no password."""
    try:
        return find_account(database, ADMIN)
    except Unknown:
        with suppress(AccountError):  # another process was faster
            create_account(database, SYSTEM, ADMIN, role="admin")
        return find_account(database, ADMIN)


def ensure_demo_tokens(database: Database, account: Account) -> None:
    """Tokens for the demo key, given once and never again, whatever becomes of them."""
    give_first_grant(database, SYSTEM, account.id, DEMO_TOKENS, "To try things with.")


def ensure_demo_key(database: Database, account: Account, file: Path) -> bool:
    """Have the demo key in `file`, mode 0600; True when it is a new one.

    A key that the file holds stays, also when an admin revoked it. Where the file is lost or from another database, a
    new key is made and the lost one is revoked, since nobody knows who has it.
    """
    if file.is_file() and knows_key(database, file.read_text(errors="replace").strip()):
        file.chmod(0o600)
        return False
    for key in list_keys(database, account):
        if key.name == _DEMO and key.revoked_at is None:
            revoke_key(database, SYSTEM, key.id)
    _, secret = create_key(database, SYSTEM, account, _DEMO)
    _write_private(file, secret + "\n")
    return True


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    fresh.replace(file)
