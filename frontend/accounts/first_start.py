"""What a new installation needs: an admin's account and a key to try the API with."""
from __future__ import annotations

import os
from pathlib import Path

from frontend.accounts.service import (
    AccountError,
    create_account,
    create_key,
    find_account,
    knows_key,
    list_keys,
    revoke_key,
)
from frontend.db import Database
from frontend.db.records import Account

ADMIN = "admin@localhost"
_DEMO = "demo"


def ensure_admin(database: Database) -> Account:
    """The first admin's account, made when it is missing. It has no password."""
    try:
        return find_account(database, ADMIN)
    except AccountError:
        return create_account(database, ADMIN, role="admin")


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
            revoke_key(database, key.id)
    _, secret = create_key(database, account, _DEMO)
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
