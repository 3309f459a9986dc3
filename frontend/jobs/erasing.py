"""Erases a Job: prompts, results and shards, from the database and from the storage."""
from __future__ import annotations

from frontend.db import Database
from frontend.db import jobs as rows
from frontend.jobs.shards import folder_of
from frontend.jobs.storage import Storage

#: Rows that one transaction deletes.
_ROWS = 2000


def erase(database: Database, storage: Storage, job_id: str) -> None:
    """Erase a Job that nobody sees any more. Whoever is interrupted may begin again. Raises Unavailable."""
    storage.remove(folder_of(job_id))
    done = False
    while not done:
        with database.write_over() as connection:
            done = rows.erase_parts(connection, job_id, _ROWS)
    with database.write_over() as connection:
        rows.erase(connection, job_id)
    database.forget_history()
