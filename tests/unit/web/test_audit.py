"""Whatever people can do over HTTP has its event in the audit log, or is something else than an act."""
from __future__ import annotations

from flask import Flask

from frontend.accounts.audit import Action

#: What each route notes. Its own room's tests look for the events.
ACTS: dict[str, set[Action]] = {
    "POST /sign-in": {Action.SESSION_BEGIN},
    "POST /sign-out": {Action.SESSION_END},
    "POST /join": {Action.ACCOUNT_ACCEPT},
    "POST /account/password": {Action.ACCOUNT_PASSWORD},
    "POST /account/sessions/<session_id>/end": {Action.SESSION_END},
    "POST /keys": {Action.KEY_CREATE},
    "POST /keys/<key_id>/revoke": {Action.KEY_REVOKE},
    "POST /keys/<key_id>/rotate": {Action.KEY_ROTATE},
    "POST /usage/request": {Action.REQUEST_MAKE},
    "POST /workbench/saved": {Action.SAVED_REQUEST_ADD},
    "POST /workbench/saved/<saved_id>/forget": {Action.SAVED_REQUEST_FORGET},
    "POST /jobs/<job_id>/cancel": {Action.JOB_CANCEL},
    "POST /jobs/<job_id>/erase": {Action.JOB_ERASE},
    "POST /admin/people": {Action.ACCOUNT_CREATE, Action.ACCOUNT_INVITE},
    "POST /admin/people/<account_id>/reset": {Action.ACCOUNT_RESET},
    "POST /admin/people/<account_id>/state": {Action.ACCOUNT_DISABLE, Action.ACCOUNT_ENABLE},
    "POST /admin/people/<account_id>/role": {Action.ACCOUNT_ROLE},
    "POST /admin/people/<account_id>/grant": {Action.GRANT_ADD},
    "POST /admin/requests/<request_id>": {Action.REQUEST_APPROVE, Action.REQUEST_REJECT},
    "POST /admin/spend": {Action.SPEND_LIMIT_SET},
    "POST /admin/models/<model>/policy": {Action.MODEL_POLICY},
    "POST /admin/models/<model>/wish": {Action.MODEL_LOAD, Action.MODEL_UNLOAD},
    "POST /admin/tritons/drain": {Action.TRITON_DRAIN, Action.TRITON_UNDRAIN},
    "POST /v1/jobs": {Action.JOB_SUBMIT},
    "POST /v1/jobs/<job_id>/cancel": {Action.JOB_CANCEL},
    "DELETE /v1/jobs/<job_id>": {Action.JOB_ERASE},
    "POST /v1/batches": {Action.JOB_SUBMIT},
    "POST /v1/batches/<batch_id>/cancel": {Action.JOB_CANCEL},
    "POST /v1/files": {Action.FILE_ADD},
    "DELETE /v1/files/<file_id>": {Action.FILE_ERASE},
}
#: What these do is in usage records, or changes nothing.
NO_ACTS = {"POST /v1/completions", "POST /v1/chat/completions", "POST /v1/tokenize", "POST /v1/detokenize",
           "POST /workbench/completions", "POST /workbench/lens"}
#: What only commands do, and the export, which is a GET.
ELSEWHERE = {Action.LIMITS_SET, Action.JOB_RETRY, Action.USAGE_EXPORT}


def test_each_route_that_changes_something_has_its_event(app: Flask) -> None:
    routes = {f"{method} {rule.rule}" for rule in app.url_map.iter_rules()
              for method in (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}}
    assert routes == ACTS.keys() | NO_ACTS


def test_each_event_has_something_that_makes_it() -> None:
    assert set().union(*ACTS.values()) | ELSEWHERE == set(Action)
