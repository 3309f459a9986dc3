"""`strata worker`: works on Jobs until it is told to stop. Any number may run, on any machines that share the parts."""
from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable

import dramatiq
import structlog
from redis.exceptions import RedisError

from frontend.budgets.leases import Leases
from frontend.db import Database
from frontend.db.migrate import migrate
from frontend.errors import Unavailable
from frontend.inference import Inference
from frontend.jobs.duties import ROUND, Duties
from frontend.jobs.governor import Governor
from frontend.jobs.lane import take
from frontend.jobs.queue import Queue
from frontend.jobs.storage import Storage
from frontend.jobs.tools import Tools
from frontend.limits.store import connect
from frontend.settings import Settings
from frontend.warmth.places import Places

#: Lanes that one worker works in at once; the requests in flight are the governor's to bound.
LANES = 16
#: Seconds between two beats, and two looks at what has come to its end.
BEAT, ENDS = 2.0, 10.0
#: Milliseconds that dramatiq's threads wait for messages at most, and that they have to end.
_IDLE, _JOIN = 200, 8000
_log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT. What is in flight then is finished within seconds, or begun again elsewhere."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    database = Database(settings.database_url)
    while not stopping.is_set():
        try:
            migrate(database)
            break
        except Unavailable:
            stopping.wait(ROUND)
    redis, inference = connect(settings.redis_url), Inference(settings.triton_urls)
    tools = Tools(settings, database, inference, Places(redis, inference, settings.load_timeout_seconds, of_jobs=True),
                  Leases(database, settings.hold_lease_seconds), Storage(settings.job_storage), stopping=stopping)
    governor = Governor(database, tools.places)
    # What is no message for us to read, dramatiq says as if it were an error: that Redis is away, again and again.
    logging.getLogger("dramatiq").setLevel(logging.CRITICAL)

    def work(job_id: str, lane: int) -> None:
        if stopping.is_set():
            return
        try:
            with tools.lanes.turn(job_id, lane):
                turn = take(tools, governor, messages, job_id, lane)
                if turn is not None:
                    turn.run()
        except Unavailable as error:
            _log.warning("job_lane_failed", job_id=job_id, lane=lane, exc_info=error)
        except Exception as error:
            _log.error("job_lane_failed", job_id=job_id, lane=lane, exc_info=error)

    messages = Queue(redis, work)
    worker = dramatiq.Worker(messages.broker, worker_threads=LANES, worker_timeout=_IDLE)
    worker.queue_prefetch = LANES  # what waits may be taken by others
    duties = Duties(tools, messages)
    for name, duty, every in (("beat", duties.beat, BEAT), ("lanes", duties.lanes, ROUND),
                              ("resume", duties.resume, ROUND), ("ends", duties.ends, ENDS)):
        threading.Thread(target=_keep_doing, args=(name, duty, every), name=name, daemon=True).start()
    worker.start()
    _log.info("worker_ready", worker=tools.worker)
    stopping.wait()
    _log.info("worker_stopping", worker=tools.worker)
    last_call = threading.Timer(_JOIN / 1000 - 1, tools.ended.set)
    last_call.daemon = True
    last_call.start()
    worker.stop(timeout=_JOIN)
    _log.info("worker_stopped", worker=tools.worker)


def _keep_doing(name: str, duty: Callable[[], object], every: float) -> None:
    """One duty for ever. A failure is logged once, and tried again in the next round."""
    failing: str | None = None
    while True:
        try:
            duty()
        except (Unavailable, RedisError) as error:
            if failing != (failing := repr(error)):
                _log.warning("duty_failed", duty=name, exc_info=error)
        except Exception as error:
            if failing != (failing := repr(error)):
                _log.error("duty_failed", duty=name, exc_info=error)
        else:
            failing = None
        time.sleep(every)
