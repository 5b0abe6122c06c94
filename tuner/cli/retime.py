"""`tunewright retime` and `db stale`: what an upgrade made stale, and timing the best of it again."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tunewright.graph.numerics import Precision

from ..arguments import MOST_RETIMED, RETIMED
from ..settings import settings
from ..text import counted, printable, short
from .answers import CommandAnswer, CommandInterrupt, messages
from .app import command, db_app
from .options import (
    BindOption,
    DbOption,
    DimOption,
    PrecisionOption,
    TargetOption,
    ThreadsOption,
    VendorOption,
    parse_dims,
)
from .tables import new_table, print_table
from .tune import STOPPED_NOTE

if TYPE_CHECKING:
    from tunewright.codegen.target import Target
    from tunewright.db.store import Store

COMBINATIONS = 500
"""Stale tasks of a target whose versions are told."""


@command()
def retime(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default="all stale tasks")
    ] = None,
    target: TargetOption = "auto",
    best: Annotated[
        int, typer.Option(min=1, max=MOST_RETIMED, help="Schedules of each task to time, besides its default.")
    ] = RETIMED,
    db: DbOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
    vendor: VendorOption = False,
) -> CommandAnswer:
    """After an upgrade, time the best schedules of stale tasks again. The same command goes on where it was stopped."""
    options: dict[str, Any] = {"db": db, "target": target, "threads": threads, "schedules": best}
    try:
        if model is None:
            return CommandAnswer(_retime_all(options), render_all)
        more = {"dims": parse_dims(dims, bind), "precision": precision, "vendor": vendor}
        return CommandAnswer(_retime_model(model, options | more), _render_one)
    except KeyboardInterrupt:
        raise CommandInterrupt(STOPPED_NOTE) from None


def _retime_model(model: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    from ..search.view import progress_view

    with progress_view(messages()) as watch:
        from ..search.local_retiming import retime as run_job  # takes a while to import: the view is there before

        return run_job(model, watch=watch, **options).to_json()


def _retime_all(options: Mapping[str, Any]) -> dict[str, Any]:
    from ..search.view import progress_view

    with progress_view(messages()) as watch:
        from ..search.local_retiming import retime_all

        def begin(target: Target, tasks: int) -> None:
            messages().print(f"{counted(tasks, 'stale task')} of {target}")

        return {"jobs": [report.to_json() for report in retime_all(begin=begin, watch=watch, **options)]}


def _render_one(console: Console, data: Mapping[str, Any]) -> None:
    from .tune_report import render

    render(console, data)


def render_all(console: Console, data: Mapping[str, Any]) -> None:
    """Print the report of each job."""
    if not data["jobs"]:
        console.print("nothing is stale: what is known for this machine was found by the present versions")
    for report in data["jobs"]:
        _render_one(console, report)


@command(db_app)
def stale(db: DbOption = None) -> CommandAnswer:
    """Say how many tasks were tuned by other versions of compiler, driver or Tunewright, and what to do."""
    from tunewright.db.reader import open_reader

    from ..search.retiming_plan import stale_counts

    with open_reader(db or settings().db) as store:
        counts = store.catalog.task_counts()
        targets = [
            _target_json(store, target, count, counts[target.key].timed)
            for target, count in stale_counts(store).items()
        ]
        return CommandAnswer({"db": str(store), "targets": targets}, render_stale)


def _target_json(store: Store, target: Target, count: int, timed: int) -> dict[str, Any]:
    """A target with stale tasks, the present versions, and those by which the first of these were tuned."""
    from ..known_times import present_versions, versions_of
    from ..search.retiming_plan import stale_bests

    found = (dict(versions_of(best.provenance, target.kind)) for best in stale_bests(store, target))
    before: list[dict[str, str]] = []
    for versions in islice(found, COMBINATIONS):
        if versions not in before:
            before.append(versions)
    return {
        "target": target.key,
        "name": str(target),
        "stale": count,
        "tasks": timed,
        "versions": dict(present_versions(target.kind)),
        "before": before,
    }


def render_stale(console: Console, data: Mapping[str, Any]) -> None:
    """Print a line a target, and the command that times them again."""
    from ..explain.upgrade import versions_text

    if not data["targets"]:
        console.print(f"{printable(data['db'])}: nothing is stale, as far as this machine knows the versions")
        return
    table = new_table(console, ("target", "name", "tuned by"), ("stale", "tasks"))
    for target in data["targets"]:
        before = "; ".join(map(versions_text, target["before"]))
        table.add_row(
            short(target["target"]), printable(target["name"]), before, str(target["stale"]), str(target["tasks"])
        )
    print_table(console, table)
    for text in dict.fromkeys(versions_text(target["versions"]) for target in data["targets"]):
        console.print(f"the present versions: {text}", soft_wrap=True)
    console.print("tunewright retime times the best of those of this machine again, tunewright retime MODEL a model")
