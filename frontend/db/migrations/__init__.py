"""alembic's migrations, oldest first in `versions/`."""
