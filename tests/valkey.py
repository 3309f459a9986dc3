"""A real Valkey for the tests: the server that the launcher runs, reached by a socket in a temporary folder."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from deploy.local.parts import VALKEY
from deploy.local.process import die_with_parent

PATIENCE = 30.0


class Valkey:
    """A running server. It can be killed, started again with nothing in it, and made to stand still."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strata-valkey-"))
        self.url = f"unix://{self.folder / 'socket'}"
        self.client: Redis = Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers. It ends with the thread that calls this."""
        command = [VALKEY, "--port", "0", "--unixsocket", self.folder / "socket", "--dir", self.folder, "--save", "",
                   "--appendonly", "no"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.client.ping()
                return
            except RedisError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def kill(self) -> None:
        """End it at once; what it knew is lost."""
        self.process.kill()
        self.process.wait()

    def stand_still(self) -> None:
        """Let it keep its connections and answer nobody."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder)
