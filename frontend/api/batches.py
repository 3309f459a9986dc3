"""/v1/batches: Jobs as the openai SDK makes them, from an uploaded file, with OpenAI's statuses and shapes."""
from __future__ import annotations

import hashlib
import tempfile
from datetime import timedelta
from typing import Any

from flask import Blueprint, Response

from frontend.api.answers import json_answer
from frontend.api.auth import actor, require_caller
from frontend.api.body import json_body
from frontend.api.jobs import LIMIT, MOST
from frontend.api.listing import number, page, query, unix
from frontend.api.parts import parts
from frontend.errors import InvalidRequest, NotFound, Problem
from frontend.jobs.files import errors_of, output_of
from frontend.jobs.lines import Reader
from frontend.jobs.service import Owner, Shown
from frontend.schemas.jobs import BATCH_LINE, ENDPOINT, WINDOW, load_batch

bp = Blueprint("batches", __name__)
#: Our statuses as OpenAI has them. A paused Job goes on by itself.
_STATUSES = {"preparing": "validating", "queued": "in_progress", "running": "in_progress", "paused": "in_progress"}
_DAY = timedelta(hours=24)


@bp.post("/v1/batches")
def create_batch() -> Response:
    """Make a Job of a file. If a line of it is wrong, the batch is there, has failed, and says so."""
    caller = require_caller("jobs")
    query()
    asked = load_batch(json_body())
    batch = {"input_file_id": asked["input_file_id"], "metadata": asked["metadata"]}
    with parts().threads.share(caller.account_id), tempfile.TemporaryFile() as file:
        parts().files.copy(asked["input_file_id"], caller.account_id, file)
        fingerprint = hashlib.sha256(asked["input_file_id"].encode()).hexdigest()
        owner = Owner(caller.account_id, caller.key_id, None, fingerprint)
        reader = Reader(parts().inference, parts().settings.max_total_tokens, BATCH_LINE)
        try:
            submission = reader.read_lines(file)
        except (InvalidRequest, NotFound) as error:
            problems = error.details or (Problem(error.message, error.param),)
            batch["errors"] = [_error(error.code, problem) for problem in problems]
            shown = parts().jobs.submit_failed(
                owner, actor(caller), batch, {"code": error.code, "message": error.message})
        else:
            try:
                shown = parts().jobs.submit(owner, actor(caller), submission, batch, within=_DAY)
            finally:
                submission.close()
    return json_answer(_described(shown))


@bp.get("/v1/batches")
def list_batches() -> Response:
    """The caller's batches, the newest first."""
    caller = require_caller("jobs")
    asked = query("limit", "after")
    limit, after = number(asked, "limit", LIMIT, 1, MOST), asked.get("after")
    found = parts().jobs.page(caller.account_id, limit + 1, _job_id(after) if after else None, batches=True)
    return json_answer(page([_described(shown) for shown in found], limit))


@bp.get("/v1/batches/<batch_id>")
def get_batch(batch_id: str) -> Response:
    """One batch."""
    caller = require_caller("jobs")
    query()
    return json_answer(_described(_shown(batch_id, caller.account_id)))


@bp.post("/v1/batches/<batch_id>/cancel")
def cancel_batch(batch_id: str) -> Response:
    """End a batch; what has finished stays."""
    caller = require_caller("jobs")
    query()
    _shown(batch_id, caller.account_id)
    return json_answer(_described(parts().jobs.cancel(_job_id(batch_id), caller.account_id, actor(caller))))


def _shown(batch_id: str, account_id: str) -> Shown:
    missing = NotFound(f"There is no batch {batch_id!r}.")
    try:
        shown = parts().jobs.show(_job_id(batch_id), account_id)
    except NotFound:
        raise missing from None
    if shown.job.batch is None:
        raise missing
    return shown


def _job_id(batch_id: str) -> str:
    return f"job_{batch_id.removeprefix('batch_')}" if batch_id.startswith("batch_") else ""


def _described(shown: Shown) -> dict[str, Any]:
    job = shown.job
    assert job.batch is not None
    finished = unix(job.finished_at)
    return {
        "id": f"batch_{job.id.removeprefix('job_')}", "object": "batch", "endpoint": ENDPOINT,
        "errors": {"object": "list", "data": job.batch["errors"]} if "errors" in job.batch else None,
        "input_file_id": job.batch["input_file_id"], "completion_window": WINDOW,
        "status": _STATUSES.get(job.status, job.status), "model": job.model or None,
        "output_file_id": output_of(job), "error_file_id": errors_of(job),
        "created_at": unix(job.created_at), "in_progress_at": unix(job.started_at),
        "expires_at": unix(job.created_at + _DAY),
        "finalizing_at": finished if job.status == "completed" else None,
        "completed_at": finished if job.status == "completed" else None,
        "failed_at": finished if job.status == "failed" else None,
        "expired_at": finished if job.status == "expired" else None,
        "cancelling_at": finished if job.status == "cancelled" else None,
        "cancelled_at": finished if job.status == "cancelled" else None,
        "request_counts": {"total": job.total, "completed": job.completed, "failed": job.failed},
        "metadata": job.batch["metadata"],
    }


def _error(code: str, problem: Problem) -> dict[str, Any]:
    line, param = None, problem.param
    if param is not None and param.startswith("line "):
        head, _, param = param.partition(".")
        line, param = int(head.removeprefix("line ")), param or None
    return {"code": code, "message": problem.message, "param": param, "line": line}
