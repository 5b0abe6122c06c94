"""Write the next revision: see the package."""

from __future__ import annotations

import sys

from alembic import command

from tunewright.db.engine import WRITE_OPTION, make_engine, parse_url
from tunewright.db.schema import HEAD, migrate, migration_config


def main(message: str) -> None:
    """Compare `tables` with an empty database migrated to `HEAD`, and write the difference as a new revision."""
    engine = make_engine(parse_url("sqlite://"), wait_s=1.0)
    with engine.connect().execution_options(**{WRITE_OPTION: True}) as connection:
        with connection.begin():
            migrate(connection)
        with connection.begin():
            command.revision(migration_config(connection), message, autogenerate=True, rev_id=f"{int(HEAD) + 1:04}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit('usage: python -m tunewright.db.migrations "What the revision does"')
    main(sys.argv[1])
