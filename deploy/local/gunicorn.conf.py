"""gunicorn's settings: threads, because a request spends its time waiting for Inference; and metrics of all workers."""
import os
import sys
from typing import Any

from deploy.local.process import die_with_parent
from deploy.local.settings import unknown_names
from frontend.db import Database
from frontend.limits.store import connect
from frontend.metrics.figures import DatabaseFigures
from frontend.metrics.folder import Folder, FolderInUse
from frontend.metrics.page import AddressInUse, listen, serve
from frontend.metrics.warmth import WarmthFigures
from frontend.settings import Settings, SettingsError

try:
    settings = Settings.from_environment()
except SettingsError as error:
    sys.exit(f"strata: {error}")

bind = f"127.0.0.1:{settings.port}"
worker_class = "gthread"
workers = settings.workers
# One thread for each request that runs or waits. The application lets one person hold no more of them than are free
# (frontend/limits/threads.py), so these are enough for a whole key's 16 active and 64 waiting requests of two people.
threads = settings.threads
worker_tmp_dir = "/dev/shm"
# Requests that still run after this are cut off; the supervisor waits a little longer.
graceful_timeout = 8
keepalive = 75
# The application writes one line for each request itself, without what was asked.
accesslog = None
control_socket_disable = True


def on_starting(server: Any) -> None:
    """Take the folder and the address of the metrics, which the workers share, or end with one line that says why."""
    # Only a warning, because an orchestrator may set variables of such names for a service that is called strata.
    for problem in unknown_names(os.environ):
        server.log.warning("strata: %s", problem)
    try:
        folder = Folder(settings.home / "metrics")
        folder.own()
        server.metrics = folder, listen(*settings.metrics_address)
    except (FolderInUse, AddressInUse, OSError) as error:
        sys.exit(f"strata: {error}")


def post_fork(server: Any, worker: Any) -> None:
    """A worker ends with its master, also when that is killed. It counts with the others."""
    die_with_parent()
    worker.metrics = server.metrics
    try:
        worker.metrics[0].join()
    except OSError as error:
        server.log.warning("what worker %s does is not counted: %s", worker.pid, error)


def post_worker_init(worker: Any) -> None:
    """A worker that has its application answers for the metrics too."""
    folder, listener = worker.metrics
    serve(listener, [folder, DatabaseFigures(Database(settings.database_url)),
                     WarmthFigures(connect(settings.redis_url), settings.models, settings.triton_urls)])


def child_exit(server: Any, worker: Any) -> None:
    """What a worker counted outlives it."""
    try:
        server.metrics[0].bury(worker.pid)
    except Exception:
        server.log.exception("what worker %s counted is lost", worker.pid)
