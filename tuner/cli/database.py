"""`tunewright export`, `import`, `backup`, `restore`, `db upgrade` and `prune`: the database as a whole."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tunewright.codegen.write_faults import naming
from tunewright.db.pruning.policy import LEAST_BEST, MOST_BEST, MOST_DAYS

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

KEEP, AS_SERVE = "How long to keep", "as serve does"
"""Words of the options of `prune`."""

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


@command(db_app)
def prune(
    db: DbOption = None,
    events_days: Annotated[
        float | None,
        typer.Option(min=0, max=MOST_DAYS, metavar="DAYS", help=f"{KEEP} all progress of jobs.", show_default=AS_SERVE),
    ] = None,
    deliveries_days: Annotated[
        float | None,
        typer.Option(
            min=0, max=MOST_DAYS, metavar="DAYS", help=f"{KEEP} what webhooks were told.", show_default=AS_SERVE
        ),
    ] = None,
    models_days: Annotated[
        float | None,
        typer.Option(min=0, max=MOST_DAYS, metavar="DAYS", help=f"{KEEP} models nobody uses.", show_default=AS_SERVE),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(min=LEAST_BEST, max=MOST_BEST, help="Trials of a task to keep for ever.", show_default=AS_SERVE),
    ] = None,
    trials_days: Annotated[
        float | None,
        typer.Option(min=0, max=MOST_DAYS, metavar="DAYS", help=f"{KEEP} the other trials.", show_default=AS_SERVE),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> CommandAnswer:
    """Remove what is not to be kept any longer, as serve does once an hour."""
    from tunewright.db.reader import open_existing

    asked: dict[str, Any] = {
        "events_days": events_days,
        "deliveries_days": deliveries_days,
        "models_days": models_days,
        "best": best,
        "trials_days": trials_days,
    }
    policy = replace(settings().retention, **{name: value for name, value in asked.items() if value is not None})
    if trials_days is not None and policy.best is None:
        raise Refused("--trials-days needs --best: how many trials of a task are kept for ever")
    with open_existing(store_url(db), patience_s=PATIENCE_S) as store:
        pruned = asdict(store.pruning.prune(policy, dry_run=dry_run))
        return CommandAnswer({"db": str(store), "dry_run": dry_run, **pruned}, render_prune)


def render_prune(console: Console, data: dict[str, Any]) -> None:
    """Print how much was removed."""
    counts = (
        ("events", counted(data["events"], "event")),
        ("trials", counted(data["trials"], "trial")),
        ("models", f"{counted(data['models'], 'model')} of {large(data['model_bytes'], 'B')}"),
        ("deliveries", counted(data["deliveries"], "delivery", "deliveries")),
        ("sessions", counted(data["sessions"], "session")),
        ("tuners", counted(data["tuners"], "tuner")),
        ("log_entries", counted(data["log_entries"], "entry of the log", "entries of the log")),
        ("environments", counted(data["environments"], "environment")),
    )
    removed = ", ".join(text for name, text in counts if data[name]) or "nothing"
    verb = "would be removed" if data["dry_run"] else "removed"
    console.print(f"{data['db']}: {removed} {verb}", soft_wrap=True)


def render_upgrade(console: Console, data: dict[str, Any]) -> None:
    """Print the schemas before and after."""
    match data["before"]:
        case None:
            console.print(f"{data['db']}: made, schema {data['revision']}")
        case before if before == data["revision"]:
            console.print(f"{data['db']}: schema {before} already")
        case before:
            console.print(f"{data['db']}: schema {before} upgraded to {data['revision']}")
