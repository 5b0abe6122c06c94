"""`tunewright export`, `import`, `backup`, `restore` and `db upgrade`: the database as a whole."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tunewright.codegen.write_faults import naming

from ..errors import Refused
from ..settings import PATIENCE_S, settings, store_url
from ..text import counted, large, printable
from .answers import STDOUT, CommandAnswer, messages
from .app import app, command, db_app
from .options import DbOption, JsonOption

if TYPE_CHECKING:
    from tunewright.db.backup import BackupContents
    from tunewright.db.engine import Watch
    from tunewright.db.exchange import BadLine

SHOWN_AFTER_S = 1.0
"""What goes on is shown of work that takes longer than this."""

LINE_BYTES = 16 << 20
"""Longest line of an export."""


@app.command()
def export(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Print every trial and confirmation, a line of JSON each. With --json the last line says how many."""
    from tunewright.db.reader import open_reader

    count = 0
    with open_reader(db or settings().db) as store:
        for entry in store.export():
            with naming(STDOUT):
                print(json.dumps(entry, separators=(",", ":"), allow_nan=False))
            count += 1
    if as_json:
        print(json.dumps({"exported": count}))
    else:
        messages().print(counted(count, "record"))


@command(name="import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What export printed; - reads standard input.", show_default=False)
    ],
    db: DbOption = None,
) -> CommandAnswer:
    """Store the records that export printed. Nothing that is there is changed or removed."""
    from tunewright.db.exchange import BadLine, Lines
    from tunewright.db.store import open_store

    is_stdin = str(file) == "-"
    with nullcontext(sys.stdin.buffer) if is_stdin else file.open("rb") as content:
        lines = Lines(content, LINE_BYTES)
        with open_store(store_url(db), patience_s=PATIENCE_S) as store:
            try:
                imported = store.import_(lines)
                lines.check()
            except BadLine as error:
                raise _refusal("standard input" if is_stdin else repr(str(file)), error) from error
    return CommandAnswer({"added": imported.added, "known": imported.known}, render_import)


def _refusal(name: str, error: BadLine) -> Refused:
    """The error for a faulty line; the lines before it are stored."""
    if not error.stored and error.is_foreign:
        return Refused(f"{name} is not a Tunewright export: {error}")
    before = f"the {counted(error.stored, 'record before it is', 'records before it are')}"
    return Refused(f"{name}, {error}; {before if error.stored else 'nothing was'} stored")


def render_import(console: Console, data: dict[str, Any]) -> None:
    """Print the counts of new and known records."""
    console.print(f"{counted(data['added'], 'record')} added, {counted(data['known'], 'was', 'were')} known")


@command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make.", show_default=False)],
    db: DbOption = None,
) -> CommandAnswer:
    """Copy the whole database into one new file, while others go on using it."""
    from tunewright.db.backup import backup as copy_database

    with _show_progress() as watch:
        contents = copy_database(db or settings().db, file, watch=watch)
    return CommandAnswer(_contents(contents), render_backup)


def render_backup(console: Console, data: dict[str, Any]) -> None:
    """Print the contents of a backup."""
    size = large(data["size_bytes"], "B")
    console.print(f"{printable(data['file'])}: {size}, schema {data['schema']}{_counts_text(data)}", soft_wrap=True)
    if data["counts"].get("keys", 1):
        console.print("API keys are in it, as digests: where it is restored they are good again", soft_wrap=True)


@command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What backup made.", show_default=False)],
    db: DbOption = None,
) -> CommandAnswer:
    """Fill a database that is empty, or not there yet, with a backup."""
    from tunewright.db.backup import restore as fill_database

    with _show_progress() as watch:
        contents = fill_database(file, store_url(db), watch=watch)
    notes = [] if contents.has_digests else [NO_DIGESTS.format(str(file))]
    return CommandAnswer({**_contents(contents), "notes": notes}, render_restore)


NO_DIGESTS = (
    "{!r} was made by an older version, without digests of its tables: were a number in it changed since, nothing "
    "would tell; tunewright backup makes one with them"
)
"""Said of a backup that could be checked in part only."""


@contextmanager
def _show_progress() -> Iterator[Watch]:
    """A function that shows on a terminal what goes on, once that takes long."""
    status = messages().status("")
    timer = threading.Timer(SHOWN_AFTER_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield status.update
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def render_restore(console: Console, data: dict[str, Any]) -> None:
    """Print what was restored."""
    console.print(f"{printable(data['db'])}: restored{_counts_text(data)}", soft_wrap=True)
    if data["counts"]["jobs"]:
        console.print("jobs that were running are queued, or paused where they belong to a command", soft_wrap=True)


def _contents(contents: BackupContents) -> dict[str, Any]:
    return {
        "file": str(contents.file),
        "db": contents.db,
        "size_bytes": contents.size_bytes,
        "schema": contents.revision,
        "counts": dict(contents.counts),
    }


def _counts_text(data: dict[str, Any]) -> str:
    return "".join(f", {counted(count, name.removesuffix('s'))}" for name, count in data["counts"].items() if count)


@command(db_app)
def upgrade(db: DbOption = None) -> CommandAnswer:
    """Bring the database's schema to this version's. Every command that writes to it does the same."""
    from tunewright.db.schema import HEAD
    from tunewright.db.store import open_store

    with open_store(store_url(db), patience_s=PATIENCE_S) as store:
        return CommandAnswer({"db": str(store), "before": store.schema_before, "revision": HEAD}, render_upgrade)


def render_upgrade(console: Console, data: dict[str, Any]) -> None:
    """Print the schemas before and after."""
    match data["before"]:
        case None:
            console.print(f"{data['db']}: made, schema {data['revision']}")
        case before if before == data["revision"]:
            console.print(f"{data['db']}: schema {before} already")
        case before:
            console.print(f"{data['db']}: schema {before} upgraded to {data['revision']}")
