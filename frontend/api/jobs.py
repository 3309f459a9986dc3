"""/v1/jobs: batches of completions that run here. Submit, look, wait, read results and shards, cancel, delete."""
from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, Any

import structlog
from flask import Blueprint, Response, request

from frontend.api.answers import api_error, json_answer
from frontend.api.auth import actor, require_caller
from frontend.api.body import spooled_body
from frontend.api.counting import Observation, observation
from frontend.api.listing import number, page, query, unix
from frontend.api.parts import parts
from frontend.api.ranges import ranged
from frontend.errors import InvalidRequest
from frontend.jobs.files import joined
from frontend.jobs.lines import Reader, Submission
from frontend.jobs.results import job_line
from frontend.jobs.service import Owner, Shown
from frontend.schemas.jobs import MAX_NAME

bp = Blueprint("jobs", __name__)
_log = structlog.get_logger(__name__)
JSONL, SAFETENSORS = "application/jsonl", "application/vnd.safetensors"
#: Seconds that GET /v1/jobs/{id} may wait, and between two looks meanwhile.
MOST_WAIT, LOOK = 60, 0.25
#: Things on a page: unless told, and at most.
LIMIT, MOST = 20, 100
#: Says up to which index no result comes later than those that are there.
COMPLETE = "X-Strata-Complete-Through"
_PART = 2**20


@bp.post("/v1/jobs")
def create_job() -> Response:
    """Check all requests, and keep them if all are right."""
    caller = require_caller("jobs")
    asked = query("name") if request.mimetype == JSONL else query()
    if request.mimetype not in ("application/json", JSONL):
        raise InvalidRequest(f"The header Content-Type must be application/json or {JSONL}.")
    key = request.headers.get("Idempotency-Key")
    if key is not None and not (1 <= len(key) <= MAX_NAME and key.isprintable()):
        raise InvalidRequest(f"The header Idempotency-Key has 1 to {MAX_NAME} visible characters.")
    name = asked.get("name")
    if name is not None and not 1 <= len(name) <= MAX_NAME:
        raise InvalidRequest(f"name has 1 to {MAX_NAME} characters.", "name")
    with parts().threads.share(caller.account_id), spooled_body(parts().settings.max_job_bytes) as body:
        owner = Owner(caller.account_id, caller.key_id, key, _fingerprint(body, name))
        shown = parts().jobs.known(owner)
        if shown is None:
            submission = _read(body, name)
            try:
                shown = parts().jobs.submit(owner, actor(caller), submission)
            finally:
                submission.close()
    observation().asked = shown.job.model
    return json_answer(described(shown))


@bp.get("/v1/jobs")
def list_jobs() -> Response:
    """The caller's Jobs, the newest first."""
    caller = require_caller("jobs")
    asked = query("limit", "after")
    limit = number(asked, "limit", LIMIT, 1, MOST)
    found = parts().jobs.page(caller.account_id, limit + 1, asked.get("after"))
    return json_answer(page([described(shown) for shown in found], limit))


@bp.get("/v1/jobs/<job_id>")
def get_job(job_id: str) -> Response:
    """One Job; with `wait`, once it has ended or is paused, after so many seconds at most."""
    caller = require_caller("jobs")
    wait = number(query("wait"), "wait", 0, 0, MOST_WAIT)
    shown = parts().jobs.show(job_id, caller.account_id)
    deadline = time.monotonic() + wait
    if wait:
        with parts().threads.share(caller.account_id):
            while shown.job.status in ("preparing", "queued", "running") and time.monotonic() < deadline:
                time.sleep(LOOK)
                shown = parts().jobs.show(job_id, caller.account_id)
    return json_answer(described(shown))


@bp.get("/v1/jobs/<job_id>/results")
def get_results(job_id: str) -> Response:
    """What has finished, a line each, in the order of submission; those after an index."""
    caller = require_caller("jobs")
    after = number(query("after"), "after", -1, -1, 10**9)
    parts().jobs.show(job_id, caller.account_id)
    through = parts().jobs.complete_through(job_id)
    lines = (part for result in parts().jobs.results(job_id, after) for part in job_line(result))
    answer = sent(caller.account_id, lambda: Response(parts_of(joined(lines)), content_type=JSONL))
    answer.headers[COMPLETE] = str(through)
    return answer


@bp.get("/v1/jobs/<job_id>/activations")
def list_shards(job_id: str) -> Response:
    """The manifest of a Job's Activations: each shard with what is in it."""
    caller = require_caller("jobs")
    asked = query("limit", "after")
    limit = number(asked, "limit", LIMIT, 1, 1000)
    parts().jobs.show(job_id, caller.account_id)
    found = parts().jobs.shards(job_id, asked.get("after", ""), limit + 1)
    return json_answer(page([
        {"name": shard.name, "object": "job.shard", "url": f"/v1/jobs/{job_id}/activations/{shard.name}",
         "bytes": shard.bytes, "sha256": shard.sha256, "entries": shard.entries} for shard in found], limit, "name"))


@bp.get("/v1/jobs/<job_id>/activations/<name>")
def get_shard(job_id: str, name: str) -> Response:
    """A shard, or a range of its bytes."""
    caller = require_caller("jobs")
    query()
    parts().jobs.show(job_id, caller.account_id)
    shard = parts().jobs.shard(job_id, name)
    return sent(caller.account_id, lambda: ranged(
        shard.bytes, SAFETENSORS, f'"{shard.sha256}"',
        lambda start, end: parts_of(parts().jobs.read_shard(job_id, shard, start, end))))


@bp.post("/v1/jobs/<job_id>/cancel")
def cancel_job(job_id: str) -> Response:
    """End a Job; what has finished stays."""
    caller = require_caller("jobs")
    return json_answer(described(parts().jobs.cancel(job_id, caller.account_id, actor(caller))))


@bp.delete("/v1/jobs/<job_id>")
def delete_job(job_id: str) -> Response:
    """End a Job and erase it."""
    caller = require_caller("jobs")
    parts().jobs.delete(job_id, caller.account_id, actor(caller))
    return json_answer({"id": job_id, "object": "job", "deleted": True})


def described(shown: Shown) -> dict[str, Any]:
    """A Job as its person sees it."""
    job = shown.job
    return {
        "id": job.id, "object": "job", "name": job.name,
        "status": "queued" if job.status == "preparing" else job.status, "reason": job.reason, "model": job.model,
        "created_at": unix(job.created_at), "started_at": unix(job.started_at), "finished_at": unix(job.finished_at),
        "expires_at": unix(job.expires_at),
        "counts": {"total": job.total, "completed": job.completed, "failed": job.failed},
        "tokens": {"charged": job.charged, "held": shown.held}, "error": job.error,
    }


def sent(account_id: str, answer: Callable[[], Response]) -> Response:
    """An answer that is read while it is sent, however slowly: as long as that takes, its thread is one of the person's
    share. Raises RateLimited."""
    with ExitStack() as stack:
        stack.enter_context(parts().threads.share(account_id))
        made = answer()
        made.call_on_close(stack.pop_all().close)
    return made


def parts_of(content: Iterator[bytes]) -> Iterator[bytes]:
    """The same parts, of which a failure is counted and logged. The first is read at once, so that a failure of that
    still is an answer of its own."""
    seen, log = observation(), _log.bind(**structlog.contextvars.get_contextvars())
    first = next(content, None)
    return _followed(first, content, seen, log)


def _followed(first: bytes | None, content: Iterator[bytes], seen: Observation, log: Any) -> Iterator[bytes]:
    try:
        if first is not None:
            yield first
            yield from content
    except Exception as raised:
        seen.code = api_error(raised, 0).code
        log.error("an answer broke off", exc_info=raised)
        raise


def _read(body: IO[bytes], name: str | None) -> Submission:
    reader = Reader(parts().inference, parts().settings.max_total_tokens)
    return reader.read_lines(body, name) if request.mimetype == JSONL else reader.read_json(body)


def _fingerprint(body: IO[bytes], name: str | None) -> str:
    digest = hashlib.sha256(f"{request.mimetype} {name}\n".encode())
    body.seek(0)
    while part := body.read(_PART):
        digest.update(part)
    return digest.hexdigest()
