"""The part of /openapi.json about Jobs, files and batches."""
from __future__ import annotations

from typing import Any

from apispec import APISpec

from frontend.api import files, jobs
from frontend.api.openapi_parts import operation
from frontend.schemas import job_answers as answers
from frontend.schemas.jobs import MAX_NAME, BatchSchema, JobRequestSchema, JobSchema

#: What a route can answer that only looks, that looks for one thing, and that takes something, beside its 200.
_LOOKS, _FINDS, _TAKES = (400, 401, 403, 429, 500, 503), (400, 401, 403, 404, 429, 500, 503), (
    400, 401, 403, 404, 409, 413, 429, 500, 502, 503)
_LINES = {"type": "string", "description": "JSON objects, one a line."}
_BYTES = {"type": "string", "format": "binary"}


def add_routes(spec: APISpec) -> None:
    """Describe the routes."""
    spec.components.schema("JobRequest", schema=JobRequestSchema)
    _add_jobs(spec)
    _add_files(spec)
    spec.path("/v1/batches", operations={
        "get": operation("listBatches", "The caller's batches, the newest first.", answers.BatchListSchema, _FINDS,
                         parameters=_page(jobs.LIMIT, jobs.MOST)),
        "post": operation("createBatch", "A Job of an uploaded file.", answers.BatchAnswerSchema, _TAKES,
                          body=BatchSchema)})
    one = [_in_path("batch_id")]
    spec.path("/v1/batches/{batch_id}", operations={"get": operation(
        "getBatch", "One batch.", answers.BatchAnswerSchema, _FINDS, parameters=one)})
    spec.path("/v1/batches/{batch_id}/cancel", operations={"post": operation(
        "cancelBatch", "End a batch; what has finished stays.", answers.BatchAnswerSchema, (*_FINDS, 409),
        parameters=one)})


def _add_jobs(spec: APISpec) -> None:
    create = operation("createJob", "Check all requests, and keep them if all are right.", answers.JobAnswerSchema,
                       _TAKES, body=JobSchema, parameters=[
                           {"name": "Idempotency-Key", "in": "header", "schema": _text(MAX_NAME), "description":
                            "The same key with the same body is the same Job."},
                           {"name": "name", "in": "query", "schema": _text(MAX_NAME), "description":
                            "With JSONL: the Job's name."}])
    create["requestBody"]["content"][jobs.JSONL] = {"schema": {
        **_LINES, "description": "Objects as those in requests, one a line."}}
    spec.path("/v1/jobs", operations={
        "get": operation("listJobs", "The caller's Jobs, the newest first.", answers.JobListSchema, _LOOKS,
                         parameters=_page(jobs.LIMIT, jobs.MOST)),
        "post": create})
    one = [_in_path("job_id")]
    spec.path("/v1/jobs/{job_id}", operations={
        "get": operation("getJob", "One Job.", answers.JobAnswerSchema, _FINDS, parameters=[*one, {
            "name": "wait", "in": "query", "description": "Answer once it has ended or is paused, or after so many "
            "seconds.", "schema": {"type": "integer", "minimum": 0, "maximum": jobs.MOST_WAIT, "default": 0}}]),
        "delete": operation("deleteJob", "End a Job and erase it.", answers.DeletedSchema, _FINDS, parameters=one)})
    spec.path("/v1/jobs/{job_id}/cancel", operations={"post": operation(
        "cancelJob", "End a Job; what has finished stays.", answers.JobAnswerSchema, (*_FINDS, 409), parameters=one)})
    results = operation(
        "getJobResults", "What has finished, a line each, in the order of submission.", None, _FINDS,
        others={jobs.JSONL: {**_LINES, "description":
            "Objects with custom_id, index, status, and response (a Completion's answer) or error."}},
        parameters=[*one, {"name": "after", "in": "query", "description": "Only those after this index.",
                           "schema": {"type": "integer", "minimum": -1, "maximum": 10**9, "default": -1}}])
    results["responses"]["200"]["headers"][jobs.COMPLETE] = {
        "description": "The index up to which none comes later: what to send as after, to go on.",
        "schema": {"type": "string", "pattern": "^(-1|[0-9]+)$"}}
    spec.path("/v1/jobs/{job_id}/results", operations={"get": results})
    spec.path("/v1/jobs/{job_id}/activations", operations={"get": operation(
        "listJobActivations", "The shards of a Job's Activations, and what is in them.", answers.ShardListSchema,
        _FINDS, parameters=[*one, *_page(jobs.LIMIT, 1000)])})
    shard = operation("getJobActivations", "A shard, or the range of its bytes that the header Range asks for.", None,
                      _FINDS, others={jobs.SAFETENSORS: _BYTES}, parameters=[*one, _in_path("name")])
    shard["responses"] |= {"206": {"description": "A range of the bytes.", "content": {
        jobs.SAFETENSORS: {"schema": _BYTES}}}, "416": {"description": "The range begins beyond the end."}}
    spec.path("/v1/jobs/{job_id}/activations/{name}", operations={"get": shard})


def _add_files(spec: APISpec) -> None:
    form = {"type": "object", "required": ["purpose", "file"], "additionalProperties": False, "properties": {
        "purpose": {"const": "batch"}, "file": _BYTES}}
    create = operation("createFile", "Keep a file for batches.", answers.FileSchema, (*_LOOKS, 413))
    create["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    spec.path("/v1/files", operations={
        "get": operation("listFiles", "The caller's uploaded files.", answers.FileListSchema, _LOOKS, parameters=[
            *_page(files.LIMIT, files.MOST),
            {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"], "default": "desc"}},
            {"name": "purpose", "in": "query", "schema": {"type": "string", "minLength": 1}}]),
        "post": create})
    one = [_in_path("file_id")]
    spec.path("/v1/files/{file_id}", operations={
        "get": operation("getFile", "One file.", answers.FileSchema, _FINDS, parameters=one),
        "delete": operation("deleteFile", "Erase an uploaded file.", answers.DeletedSchema, _FINDS, parameters=one)})
    spec.path("/v1/files/{file_id}/content", operations={"get": operation(
        "getFileContent", "What is in a file.", None, _FINDS, others={jobs.JSONL: _LINES}, parameters=one)})


def _page(default: int, most: int) -> list[dict[str, Any]]:
    return [
        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": most,
                                                    "default": default}},
        {"name": "after", "in": "query", "description": "Only those that come after this one.",
         "schema": {"type": "string", "minLength": 1}},
    ]


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _text(longest: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest, "pattern": "^[ -~]+$"}


