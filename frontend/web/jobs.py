"""The Jobs pages: a list whose bars move by themselves, and one Job with its counts, errors, downloads and its end."""
from __future__ import annotations

from contextlib import suppress

from flask import Blueprint, Response, make_response, redirect, render_template, request

from frontend.api.jobs import JSONL, SAFETENSORS, parts_of, sent
from frontend.api.parts import parts
from frontend.api.ranges import ranged
from frontend.errors import JobNotCancellable
from frontend.jobs.files import joined
from frontend.jobs.results import job_line
from frontend.web.visitor import actor, require_person

bp = Blueprint("jobs", __name__)
#: Jobs of one page, and shards that a Job's page lists.
PAGE, SHARDS = 50, 200
#: The status by which htmx stops to ask again (htmx.org/attributes/hx-trigger, polling).
_STOP = 286


@bp.get("/jobs")
def show_all() -> Response:
    """The person's Jobs, the newest first."""
    return _list("jobs.html")


@bp.get("/jobs/rows")
def rows() -> Response:
    """The part of the page that changes by itself."""
    return _list("jobs_rows.html")


@bp.get("/jobs/<job_id>")
def show(job_id: str) -> Response:
    """One Job."""
    return _job("job.html", job_id)


@bp.get("/jobs/<job_id>/progress")
def progress(job_id: str) -> Response:
    """The part of a Job's page that changes by itself. Once the Job has ended, htmx is told to ask no more."""
    return _job("job_progress.html", job_id, ended=_STOP if "HX-Request" in request.headers else 200)


@bp.get("/jobs/<job_id>/results.jsonl")
def results(job_id: str) -> Response:
    """What has finished, a line each."""
    account = require_person()
    parts().jobs.show(job_id, account.id)
    lines = (part for result in parts().jobs.results(job_id) for part in job_line(result))
    answer = sent(account.id, lambda: Response(parts_of(joined(lines)), content_type=JSONL))
    return _as_file(answer, f"{job_id}.jsonl")


@bp.get("/jobs/<job_id>/activations/<name>")
def shard(job_id: str, name: str) -> Response:
    """A file of Activations, or a range of its bytes."""
    account = require_person()
    parts().jobs.show(job_id, account.id)
    found = parts().jobs.shard(job_id, name)
    answer = sent(account.id, lambda: ranged(
        found.bytes, SAFETENSORS, f'"{found.sha256}"',
        lambda start, end: parts_of(parts().jobs.read_shard(job_id, found, start, end))))
    return _as_file(answer, f"{job_id}-{name}")


@bp.post("/jobs/<job_id>/cancel")
def cancel(job_id: str) -> Response:
    """End a Job. One that ended by itself just now has what the person wants."""
    account = require_person()
    with suppress(JobNotCancellable):
        parts().jobs.cancel(job_id, account.id, actor())
    return make_response(redirect(f"/jobs/{job_id}", 303))


@bp.get("/jobs/<job_id>/erase")
def ask_erase(job_id: str) -> Response:
    """Make sure."""
    account = require_person()
    return make_response(render_template("job_erase.html", job=parts().jobs.show(job_id, account.id).job))


@bp.post("/jobs/<job_id>/erase")
def erase(job_id: str) -> Response:
    """Erase a Job with its prompts and results."""
    account = require_person()
    parts().jobs.delete(job_id, account.id, actor())
    return make_response(redirect("/jobs", 303))


def _list(template: str) -> Response:
    account = require_person()
    after = request.args.get("after")
    found = parts().jobs.page(account.id, PAGE + 1, after)
    return make_response(render_template(
        template, jobs=found[:PAGE], more=found[PAGE - 1].job.id if len(found) > PAGE else None, after=after))


def _job(template: str, job_id: str, ended: int = 200) -> Response:
    account = require_person()
    shown = parts().jobs.show(job_id, account.id)
    shards = parts().jobs.shards(job_id, limit=SHARDS + 1)
    return make_response(render_template(
        template, job=shown.job, held=shown.held, errors=parts().jobs.errors(job_id), shards=shards[:SHARDS],
        more_shards=len(shards) > SHARDS), ended if shown.job.final else 200)


def _as_file(answer: Response, name: str) -> Response:
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer
