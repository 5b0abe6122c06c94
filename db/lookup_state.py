"""The state of what lookups read in a SQLite file, for those who keep what a lookup found. Light to import.

Files change without that: processes that wait for jobs write that they are alive, and the journal grows and is emptied.
All that lookups read is stored as new rows: trials, repeats and confirmations, what was taken back, snapshots of cost
models, and events of jobs, each of whose results comes with one. So the newest row of each table tells the state.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .sqlite_library import sqlite_module

WAIT_S = 0.2
"""How long another process's lock is waited for; without WAL a commit takes one."""

NEWEST_ROWS = (
    ("trials", "id, created_at"),
    ("repeats", "id, created_at"),
    ("confirmations", "id, created_at"),
    ("voids", "id, created_at"),
    ("cost_models", "id, made_at"),
    ("job_events", "rowid, created_at"),
)
"""The tables, and what tells one newest row from another: numbers alone would be alike in two files."""


def lookup_state(file: Path) -> list[Any] | None:
    """The file's identity and its newest rows, as plain data; None where they can't be read at this moment."""
    module: Any = sqlite_module()
    try:
        status = file.stat()
        # Without a journal nobody has the file open in WAL mode, and reading it in any other way would make one.
        is_closed = not Path(f"{file}-wal").exists() and not Path(f"{file}-journal").exists()
        options = "mode=ro&immutable=1" if is_closed else "mode=ro"
        name = f"file:{quote(str(file.absolute()))}?{options}"
        with closing(module.connect(name, uri=True, timeout=WAIT_S, isolation_level=None)) as connection:
            connection.execute("BEGIN")  # all of one moment
            rows = [_newest_row(connection, table, columns) for table, columns in NEWEST_ROWS]
    except (OSError, module.Error):
        return None
    return [status.st_dev, status.st_ino, *rows]


def _newest_row(connection: Any, table: str, columns: str) -> list[Any] | None:
    row = connection.execute(f"SELECT {columns} FROM {table} ORDER BY rowid DESC LIMIT 1").fetchone()  # noqa: S608
    return None if row is None else list(row)
