"""Runs migrations on the connection that `frontend.db.migrate` hands over, inside its transaction."""
from __future__ import annotations

from alembic import context

from frontend.db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True
)
context.run_migrations()
