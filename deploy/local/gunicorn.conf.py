"""gunicorn's settings: threads, because a request spends its time waiting for Inference."""
import os

from deploy.local.process import die_with_parent

bind = f"127.0.0.1:{os.environ.get('STRATA_PORT', '8080')}"
worker_class = "gthread"
workers = 2
# One thread for each request that runs or waits: more than a key's 16 active and 64 waiting in each worker.
threads = 96
worker_tmp_dir = "/dev/shm"
# Requests that still run after this are cut off; the supervisor waits a little longer.
graceful_timeout = 8
keepalive = 75
# The application writes one line for each request itself, without what was asked.
accesslog = None
control_socket_disable = True


def post_fork(server: object, worker: object) -> None:
    """A worker ends with its master, also when that is killed."""
    die_with_parent()
