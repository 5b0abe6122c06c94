"""`tunewright export`, `import` and `db upgrade`: the database as a whole."""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.db.reading import open_reader
from tunewright.db.schema import HEAD
from tunewright.db.sql_store import open_store
from tunewright.db.errors import StoreError

from ..errors import Refused
from ..settings import settings


def export(db: str | None, write: Callable[[str], Any]) -> dict[str, Any]:
    """Write every trial, a line of JSON each."""
    count = 0
    with open_reader(db or settings().db) as store:
        for entry in store.export():
            write(json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n")
            count += 1
    return {"exported": count}


def import_(file: Path, db: str | None) -> dict[str, Any]:
    """Store the trials of a file of such lines; "-" is standard input."""
    if str(file) == "-":
        return _stored(_Lines("standard input", sys.stdin.buffer), db)
    with file.open("rb") as lines:
        return _stored(_Lines(repr(str(file)), lines), db)


def _stored(lines: _Lines, db: str | None) -> dict[str, Any]:
    with open_store(db or settings().db) as store:
        try:
            imported = store.import_(lines)
        except StoreError as error:
            fault = re.fullmatch(r"line (\d+): (.*)", str(error), re.DOTALL)  # anything else is of the database
            if fault is None:
                raise
            raise lines.refusal(int(fault[1]), fault[2]) from error
    if lines.fault:
        raise lines.refusal(*lines.fault)
    return {"added": imported.added, "known": imported.known}


class _Lines:
    """The lines of an export as the store reads them, up to the first that is no text or a summary that is wrong.

    The summary that `export --json` ends with must agree with the number of trials before it. What is no trial counts
    as a blank line, so that the store counts lines as the file does.
    """

    def __init__(self, name: str, lines: Iterable[bytes]) -> None:
        self.fault: tuple[int, str] | None = None  # the line that ended it, and what is wrong there
        self._name = name
        self._lines = lines
        self._others: list[int] = []  # numbers of the lines that are no trials, ascending

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, 1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                self.fault = number, f"this is no text: {error}"
                return
            summed = text.startswith('{"exported"')
            if summed and text.strip() != f'{{"exported": {self._trials_before(number)}}}':
                said = text.strip()[:80]
                self.fault = number, f"it says {said}, but {self._trials_before(number)} trials precede it"
                return
            if summed or not text.strip():
                self._others.append(number)
            yield "" if summed else text

    def _trials_before(self, number: int) -> int:
        return number - 1 - bisect_left(self._others, number)

    def refusal(self, number: int, said: str) -> Refused:
        """What to tell of a fault in a line; the lines before it are stored."""
        before = self._trials_before(number)
        if not before:
            return Refused(f"{self._name} is not a Tunewright export: line {number}: {said}")
        stored = f"the {before} trials before it are" if before > 1 else "the trial before it is"
        return Refused(f"{self._name}, line {number}: {said}; {stored} stored")


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
