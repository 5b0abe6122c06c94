"""`tunewright export`, `import`, `backup`, `restore` and `db upgrade`: the database as a whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from tunewright.db.backup import Contents
from tunewright.db.backup import backup as back_up
from tunewright.db.backup import restore as bring_back
from tunewright.db.exchange import CUT_SHORT, BadLine, Lines
from tunewright.db.reading import open_reader
from tunewright.db.schema import HEAD
from tunewright.db.sql_store import open_store

from ..errors import Refused
from ..settings import PATIENCE_S, settings
from ..text import counted, large, printable

LINE_BYTES = 16 << 20
"""Longest line of an export."""


def export(db: str | None, write: Callable[[str], Any]) -> dict[str, Any]:
    """Write every record, a line of JSON each."""
    count = 0
    with open_reader(db or settings().db) as store:
        for entry in store.export():
            write(json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n")
            count += 1
    return {"exported": count}


def import_(file: Path, db: str | None) -> dict[str, Any]:
    """Store the records of a file of such lines; "-" is standard input."""
    if str(file) == "-":
        return _stored("standard input", sys.stdin.buffer, db)
    with file.open("rb") as lines:
        return _stored(repr(str(file)), lines, db)


def _stored(name: str, file: IO[bytes], db: str | None) -> dict[str, Any]:
    lines = Lines(file, LINE_BYTES)
    with open_store(db or settings().db, patience_s=PATIENCE_S) as store:
        try:
            imported = store.import_(lines)
            lines.check()
        except BadLine as error:
            raise _refusal(name, error) from error
    return {"added": imported.added, "known": imported.known}


def _refusal(name: str, error: BadLine) -> Refused:
    """What to tell of a fault in a line; the lines before it are stored."""
    if not error.stored and error.said == CUT_SHORT:
        return Refused(f"{name}, {error}; nothing was stored")
    if not error.stored:
        return Refused(f"{name} is not a Tunewright export: {error}")
    before = f"the {counted(error.stored, 'record before it is', 'records before it are')}"
    return Refused(f"{name}, {error}; {before} stored")


def render_import(console: Console, data: dict[str, Any]) -> None:
    """How many were new."""
    console.print(f"{counted(data['added'], 'record')} added, {counted(data['known'], 'was', 'were')} known")


def upgrade(db: str | None) -> dict[str, Any]:
    """Bring the schema of the database to the one that this version knows; opening it does."""
    with open_store(db or settings().db, patience_s=PATIENCE_S) as store:
        return {"db": str(store), "before": store.schema_before, "revision": HEAD}


def render_upgrade(console: Console, data: dict[str, Any]) -> None:
    """From where to where."""
    match data["before"]:
        case None:
            console.print(f"{data['db']}: made, schema {data['revision']}")
        case before if before == data["revision"]:
            console.print(f"{data['db']}: schema {before} already")
        case before:
            console.print(f"{data['db']}: schema {before} upgraded to {data['revision']}")


def backup(file: Path, db: str | None) -> dict[str, Any]:
    """Copy the whole database into a new file."""
    return _contents(back_up(db or settings().db, file))


def restore(file: Path, db: str | None) -> dict[str, Any]:
    """Fill an empty database with a backup."""
    return _contents(bring_back(file, db or settings().db))


def _contents(found: Contents) -> dict[str, Any]:
    return {
        "file": str(found.file),
        "db": found.db,
        "size_bytes": found.size_bytes,
        "schema": found.revision,
        "counts": dict(found.counts),
    }


def render_backup(console: Console, data: dict[str, Any]) -> None:
    """What is in it."""
    size = large(data["size_bytes"], "B")
    console.print(f"{printable(data['file'])}: {size}, schema {data['schema']}{_held(data)}", soft_wrap=True)
    if data["counts"].get("keys", 1):
        console.print("API keys are in it, as digests: where it is restored they are good again", soft_wrap=True)


def render_restore(console: Console, data: dict[str, Any]) -> None:
    """What came."""
    console.print(f"{printable(data['db'])}: restored{_held(data)}", soft_wrap=True)
    if data["counts"]["jobs"]:
        console.print("jobs that were running are queued, or paused where they belong to a command", soft_wrap=True)


def _held(data: dict[str, Any]) -> str:
    return "".join(f", {counted(count, name.removesuffix('s'))}" for name, count in data["counts"].items() if count)
