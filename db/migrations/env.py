"""Alembic runs this file to migrate the connection that `schema.migration_config` hands over."""

from __future__ import annotations

from alembic import context

from tunewright.db.schema import METADATA

# The connection is in a transaction already: all migrations happen or none. SQLite can alter little in place, so
# tables are rebuilt there (batch mode); PostgreSQL alters them.
context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
context.run_migrations()
