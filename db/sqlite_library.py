"""The SQLite library that all of a process uses: two of them would not see each other's locks.

SQLite 3.7.0 to 3.51.2 can corrupt a database in WAL mode when two connections write or checkpoint at the same instant
(fixed in 3.51.3; 3.52.0 was withdrawn). So Python's library is used if it is fixed, else that of pysqlite3 if it is
installed and fixed, else the rollback journal. Light to import.
"""

from __future__ import annotations

import importlib
import sqlite3
from types import ModuleType


def wal_is_safe(version: tuple[int, ...]) -> bool:
    """Whether this version of the SQLite library may use WAL mode."""
    return version >= (3, 51, 3) and version != (3, 52, 0)


def sqlite_module() -> ModuleType:
    """The DB-API module for SQLite; `wal_is_safe` depends on its `sqlite_version_info`."""
    if wal_is_safe(sqlite3.sqlite_version_info):
        return sqlite3
    try:
        bundled = importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return sqlite3
    return bundled if wal_is_safe(bundled.sqlite_version_info) else sqlite3
