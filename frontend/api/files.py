"""/v1/files: what the openai SDK uploads for batches, and what batches brought."""
from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from flask import Blueprint, Response, request
from werkzeug.exceptions import HTTPException

from frontend.api.answers import json_answer
from frontend.api.auth import actor, require_caller
from frontend.api.body import is_full
from frontend.api.jobs import JSONL, parts_of, sent
from frontend.api.listing import number, page, query, unix
from frontend.api.parts import parts
from frontend.errors import InvalidRequest, Problem
from frontend.jobs.files import File

bp = Blueprint("files", __name__)
#: How long a file may be kept, in seconds, where its upload says so.
SHORTEST, LONGEST = 3600, 2_592_000
_FIELDS = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}
#: Bytes around the file in its form, and files on a page: unless told, and at most.
_FORM, LIMIT, MOST = 2**16, 10_000, 10_000


@bp.post("/v1/files")
def create_file() -> Response:
    """Keep a file. Its lines are checked when a batch is made of it."""
    caller = require_caller("jobs")
    query()
    if request.mimetype != "multipart/form-data":
        raise InvalidRequest("The header Content-Type must be multipart/form-data.")
    limit = parts().settings.max_job_bytes
    request.max_content_length = limit + _FORM
    with parts().threads.share(caller.account_id):
        try:
            form, files = request.form, request.files
        except HTTPException:
            raise
        except Exception as error:
            if is_full(error):
                raise
            raise InvalidRequest("The form broke off or is not valid.") from error
        problems = [Problem(f"Unknown field: {name}.", name) for name in (*form, *files)
                    if name not in _FIELDS | {"file"}]
        problems += [Problem(f"{name} is given twice.", name) for name in dict.fromkeys((*form, *files))
                     if len(form.getlist(name)) + len(files.getlist(name)) > 1]
        if form.get("purpose") != "batch":
            problems.append(Problem("purpose must be 'batch'.", "purpose"))
        if "file" not in files:
            problems.append(Problem("file is required.", "file"))
        elif "\0" in (files["file"].filename or ""):
            problems.append(Problem("The file's name must not hold the character U+0000.", "file"))
        keep = _keep(form.get("expires_after[anchor]"), form.get("expires_after[seconds]"), problems)
        if problems:
            raise InvalidRequest.of(problems)
        name = files["file"].filename or "file.jsonl"
        file = parts().files.add(caller.account_id, actor(caller), name[:255], files["file"].stream, keep)
    return json_answer(_described(file))


@bp.get("/v1/files")
def list_files() -> Response:
    """The caller's uploaded files."""
    caller = require_caller("jobs")
    asked = query("limit", "after", "order", "purpose")
    limit, order = number(asked, "limit", LIMIT, 1, MOST), asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order is 'asc' or 'desc'.", "order")
    found = []
    if asked.get("purpose", "batch") == "batch":
        found = parts().files.page(caller.account_id, limit + 1, asked.get("after"), order == "asc")
    return json_answer(page([_described(file) for file in found], limit))


@bp.get("/v1/files/<file_id>")
def get_file(file_id: str) -> Response:
    """One file."""
    caller = require_caller("jobs")
    query()
    return json_answer(_described(parts().files.show(file_id, caller.account_id)))


@bp.get("/v1/files/<file_id>/content")
def get_content(file_id: str) -> Response:
    """What is in it."""
    caller = require_caller("jobs")
    query()
    return sent(caller.account_id, lambda: Response(
        parts_of(parts().files.read(file_id, caller.account_id)), content_type=JSONL))


@bp.delete("/v1/files/<file_id>")
def delete_file(file_id: str) -> Response:
    """Erase an uploaded file."""
    caller = require_caller("jobs")
    query()
    parts().files.delete(file_id, caller.account_id, actor(caller))
    return json_answer({"id": file_id, "object": "file", "deleted": True})


def _keep(anchor: str | None, seconds: str | None, problems: list[Problem]) -> timedelta | None:
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        problems.append(Problem("expires_after[anchor] must be 'created_at'.", "expires_after"))
    if not (re.fullmatch(r"\d{1,9}", seconds or "", re.ASCII) and SHORTEST <= int(seconds or 0) <= LONGEST):
        problems.append(Problem(f"expires_after[seconds] is a whole number from {SHORTEST} to {LONGEST}.",
                                "expires_after"))
        return None
    return timedelta(seconds=int(seconds or 0))


def _described(file: File) -> dict[str, Any]:
    return {
        "id": file.id, "object": "file", "bytes": file.bytes, "created_at": unix(file.created_at),
        "expires_at": unix(file.expires_at), "filename": file.name, "purpose": file.purpose, "status": "processed",
        "status_details": None,
    }
