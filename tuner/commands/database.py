"""`tunewright export`, `import`, `backup`, `restore` and `db upgrade`: the database as a whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from tunewright.db.backup import Contents
from tunewright.db.backup import backup as back_up
from tunewright.db.backup import restore as bring_back
from tunewright.db.exchange import BadLine
from tunewright.db.reading import open_reader
from tunewright.db.schema import HEAD
from tunewright.db.sql_store import open_store

from ..errors import Refused
from ..settings import PATIENCE_S, settings
from ..text import large, printable

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
        return _stored(_Lines("standard input", sys.stdin.buffer), db)
    with file.open("rb") as lines:
        return _stored(_Lines(repr(str(file)), lines), db)


def _stored(lines: _Lines, db: str | None) -> dict[str, Any]:
    with open_store(db or settings().db, patience_s=PATIENCE_S) as store:
        try:
            imported = store.import_(lines)
        except BadLine as error:
            raise lines.refusal(error.number, error.said, error.stored) from error
    if lines.fault:
        raise lines.refusal(*lines.fault)
    return {"added": imported.added, "known": imported.known}


class _Lines:
    """The lines of an export as the store reads them, up to the first that is no text or a summary that is wrong.

    The summary that `export --json` ends with must agree with the number of records before it. What is no record counts
    as a blank line, so that the store counts lines as the file does.
    """

    def __init__(self, name: str, lines: IO[bytes]) -> None:
        self.fault: tuple[int, str, int] | None = None  # the line that ended it, what is wrong, records before it
        self._name = name
        self._lines = lines

    def __iter__(self) -> Iterator[str]:
        records = 0
        for number, line in enumerate(iter(lambda: self._lines.readline(LINE_BYTES + 1), b""), 1):
            if len(line) > LINE_BYTES:
                self.fault = number, f"it is longer than {LINE_BYTES >> 20} MiB", records
                return
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                self.fault = number, f"this is no text: {error}", records
                return
            summed = text.startswith('{"exported"')
            if summed and text.strip() != f'{{"exported": {records}}}':
                self.fault = number, f"it says {text.strip()[:80]}, but {records} records precede it", records
                return
            records += not summed and bool(text.strip())
            yield "" if summed else text

    def refusal(self, number: int, said: str, stored: int) -> Refused:
        """What to tell of a fault in a line; the lines before it are stored."""
        if not stored:
            return Refused(f"{self._name} is not a Tunewright export: line {number}: {said}")
        before = f"the {stored} records before it are" if stored > 1 else "the record before it is"
        return Refused(f"{self._name}, line {number}: {said}; {before} stored")


def render_import(console: Console, data: dict[str, Any]) -> None:
    """How many were new."""
    console.print(f"{data['added']} records added, {data['known']} were known")


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
    return "".join(f", {count} {name}" for name, count in data["counts"].items() if count)
