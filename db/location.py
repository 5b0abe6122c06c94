"""Where a database is, told from its URL alone. Imports no SQL: who only asks whether there is one needs none."""

from __future__ import annotations

from pathlib import Path

SQLITE = "sqlite:///"
"""Prefix of the URL of a database that is a file of this machine."""


def plain_file(url: str) -> Path | None:
    """The file of a SQLite database whose URL is a path and no more; None for all other URLs."""
    path = url.removeprefix(SQLITE)
    if path == url or not path or path.startswith((":", "file:")) or not {"?", "%"}.isdisjoint(path):
        return None  # a percent sign: part of an escaped letter
    return Path(path)


def is_absent(url: str) -> bool:
    """Whether there is certainly no database: its file is missing. Of other URLs only a connection tells."""
    file = plain_file(url)
    return file is not None and not file.exists()
