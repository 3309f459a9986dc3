"""What pages ask the database for is found by indices, so that they stay quick when the books are long."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from flask import Flask
from sqlalchemy import event

from frontend.api.parts import EXTENSION
from frontend.db import Database
from frontend.db.records import Account
from tests.unit.web.conftest import Browser
from tests.unit.web.test_jobs import finish, make
from tests.unit.web.test_pages import use

#: Tables with a row for each request, each act or each Job.
LONG = ("usage_records", "ledger", "audit_events", "jobs", "job_items", "job_results", "job_tasks")
PATHS = ("/usage", "/usage?days=365", "/usage.csv", "/keys", "/account", "/jobs", "/jobs/rows", "/admin/people",
         "/admin/spend", "/admin/audit", "/admin/audit?account=mira@example.org",
         "/admin/audit?action=key:revoke", "/admin/audit?account=mira@example.org&action=key:revoke", "/admin/health")


def test_no_page_reads_a_long_table_from_end_to_end(
    app: Flask, signed_in: Callable[[Account], Browser], database: Database, mira: Account
) -> None:
    job_id = make(database, mira)
    finish(database, job_id, 0, "context_length_exceeded")
    use(database, mira, 1)
    asked: dict[str, tuple[str, Any]] = {}
    path = ""

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.lstrip().startswith("SELECT"):
            asked[statement] = path, parameters

    engine = app.extensions[EXTENSION].database.engine
    event.listen(engine, "before_cursor_execute", note)
    browser = signed_in(mira)
    for path in (*PATHS, f"/jobs/{job_id}", f"/jobs/{job_id}/progress", f"/jobs/{job_id}/results.jsonl",
                 f"/admin/people/{mira.id}"):
        assert browser.get(path).status_code == 200, path
    event.remove(engine, "before_cursor_execute", note)
    assert len(asked) > 20
    with database.read() as connection:
        for statement, (page, parameters) in asked.items():
            plan = [row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            for step in plan:
                scanned = re.match(r"SCAN (\w+)", step)
                newest = "LIMIT" in statement and "WHERE" not in statement
                assert newest or not scanned or scanned[1] not in LONG, (page, step, statement)
