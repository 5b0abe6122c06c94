"""`tunewright export`, `import` and `db upgrade`: the database as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.db.schema import HEAD
from tunewright.db.sql_store import open_store

from ..errors import Refused
from ..settings import settings


def export(db: str | None, write: Callable[[str], Any]) -> dict[str, Any]:
    """Write every trial, a line of JSON each."""
    count = 0
    with open_store(db or settings().db) as store:
        for entry in store.export():
            write(json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n")
            count += 1
    return {"exported": count}


def import_(file: Path, db: str | None) -> dict[str, Any]:
    """Store the trials of a file of such lines."""
    with open_store(db or settings().db) as store, file.open(encoding="utf-8") as lines:
        try:
            imported = store.import_(_trials(lines))
        except UnicodeDecodeError as error:
            raise Refused(f"{str(file)!r} is no text: {error}") from error
    return {"added": imported.added, "known": imported.known}


def _trials(lines: Iterable[str]) -> Iterator[str]:
    """The lines without the summary that `export --json` ends with, which must agree with their number."""
    count = 0
    for number, line in enumerate(lines, 1):
        if line.startswith('{"exported"'):
            if json.loads(line)["exported"] != count:
                raise Refused(f"line {number} says that {line.strip()} trials precede it, but {count} do")
            continue
        count += bool(line.strip())
        yield line


def render_import(console: Console, data: dict[str, Any]) -> None:
    """How many were new."""
    console.print(f"{data['added']} trials added, {data['known']} were known")


def upgrade(db: str | None) -> dict[str, Any]:
    """Bring the schema of the database to the one that this version knows; opening it does."""
    with open_store(db or settings().db) as store:
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
