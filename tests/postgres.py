"""A real PostgreSQL for the tests: Debian's, with a cluster of its own in a temporary folder, reached by its socket."""
from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from deploy.local.process import die_with_parent

PATIENCE = 60.0


class NotInstalled(Exception):
    """This machine has no PostgreSQL."""


class Postgres:
    """A running server. The tests' databases in it are empty when they get them.

    A database is three hundred files, which take a tenth of a second to make and as long to remove. So those that are
    given back are emptied and used again.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    @classmethod
    def start(cls) -> Postgres:
        """Make a cluster and start it. Raises NotInstalled."""
        binaries = _binaries()
        folder = Path(tempfile.mkdtemp(prefix="strata-pg-"))
        user = _unprivileged()
        if user:
            shutil.chown(folder, user)
        as_user = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
        with (folder / "log").open("wb") as log:
            subprocess.run(
                [binaries / "initdb", "--pgdata", folder / "data", "--username", "strata", "--auth", "trust",
                 "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"],
                cwd=folder, stdout=log, stderr=log, check=True, **as_user)
            process = subprocess.Popen(
                [binaries / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=",
                 "-c", "fsync=off", "-c", "max_connections=300"],
                cwd=folder, stdout=log, stderr=log, preexec_fn=die_with_parent, **as_user)
        server = cls(folder, process)
        server._wait()
        return server

    def take_database(self) -> str:
        """The URL of an empty database, to be given back."""
        return self._free.pop() if self._free else self.new_database()

    def give_back(self, url: str) -> None:
        """Empty a database that was taken, whoever is still connected to it."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                               "WHERE datname = current_database() AND pid <> pg_backend_pid()")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        self._free.append(url)

    def new_database(self) -> str:
        """The URL of a database that nobody has used, for as long as the server runs."""
        name = f"strata_{next(self._numbers)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def stop(self) -> None:
        """End it and remove its folder."""
        self.process.send_signal(signal.SIGQUIT)  # at once: nobody reads this data again
        self.process.wait(PATIENCE)
        shutil.rmtree(self.folder)

    def _url(self, database: str) -> str:
        return f"postgresql://strata@/{database}?host={self.folder}"

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self._url("postgres")).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text(errors="replace")[-4000:]) from None
                time.sleep(0.05)


def _binaries() -> Path:
    """The folder of the newest server that Debian's packages installed. They put it into no PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("postgres")
    if elsewhere is None:
        raise NotInstalled("apt-get install postgresql")
    return Path(elsewhere).resolve().parent


def _unprivileged() -> str | None:
    """The user to run as where we are root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)
