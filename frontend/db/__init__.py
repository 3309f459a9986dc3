"""The database: tables, migrations, and every SQL statement of the frontend. Nothing outside this package knows SQL."""
from __future__ import annotations

from frontend.db import drains, job_tables, policies, spend_tables, token_tables, web_tables
from frontend.db.engine import Database

__all__ = ["Database", "drains", "job_tables", "policies", "spend_tables", "token_tables", "web_tables"]
