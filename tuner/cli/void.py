"""`tunewright void`: taking a schedule back, so that it is offered no more, and lifting that."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tunewright.codegen.fields import quote

from ..errors import Refused
from ..settings import PATIENCE_S, store_url
from ..text import counted, printable
from .answers import CommandAnswer
from .app import command
from .options import DbOption, ThreadsOption

if TYPE_CHECKING:
    from tunewright.db.store import Store
    from tunewright.search_space.schedule import Schedule

KEY = re.compile("[0-9a-f]{6,64}")
"""A key, or the begin of one."""

BEST = "best"

KEPT_NOTE = "clients of a server ask anew within an hour"
"""What is still to come then: they use what they keep, as `Lookups` says for how long."""


@command()
def void(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Key of a task, or the begin of it.", show_default=False)],
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why: it is kept.", show_default=False)] = None,
    schedule: Annotated[
        str, typer.Option(metavar="best|KEY", help="Which: the best known, or of that key, or the begin of it.")
    ] = BEST,
    target: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda|KEY", help="Measured on which: a device here, or that of a key.")
    ] = "auto",
    undo: Annotated[bool, typer.Option("--undo", help="Let it count again.")] = False,
    db: DbOption = None,
    threads: ThreadsOption = None,
) -> CommandAnswer:
    """Take a schedule of a task back: it is offered no more. Its records are kept."""
    from tunewright.db.errors import NotFound
    from tunewright.db.exchange import check_reason
    from tunewright.db.store import open_store

    if undo == (reason is not None):
        raise Refused("--undo takes no --reason" if undo else "say why, for those who come later: --reason TEXT")
    if reason is not None:
        try:
            check_reason("--reason", reason)
        except ValueError as error:
            raise Refused(str(error)) from error
    with open_store(store_url(db), patience_s=PATIENCE_S) as store:
        target_key = _target(store, target, threads)
        task_key = _only_key("task", task, store.task_keys(task))
        chosen = _schedule(store, task_key, target_key, schedule, undo)
        try:
            if undo:
                count = store.voids.lift(task_key, target_key, chosen.key)
            else:
                count = store.voids.void(task_key, target_key, chosen.key, reason or "")
        except NotFound as error:
            raise Refused(str(error)) from error
        data = {
            "task": task_key,
            "target": target_key,
            "schedule_key": chosen.key,
            "schedule": chosen.to_json(),
            "records": count,
            "voided": not undo,
        }
    return CommandAnswer(data, render)


def _target(store: Store, name: str, threads: int | None) -> str:
    """Key of a target: of a device here, or of one that the database knows by that key."""
    from ..targets import TARGETS, local_target

    if KEY.fullmatch(name):
        return _only_key("target", name, [target.key for target in store.targets() if target.key.startswith(name)])
    if name not in TARGETS:
        others = f"there are {', '.join(TARGETS)}, and by their keys, or 6 digits of one, those of the database"
        raise Refused(f"no target is called {name!r}; {others}")
    return local_target(name, threads).key


def _schedule(store: Store, task_key: str, target_key: str, choice: str, undo: bool) -> Schedule:
    schedules = {schedule.key: schedule for schedule in store.voids.schedules(task_key, target_key)}
    if choice == BEST:
        if undo:
            raise Refused("name the schedule: --schedule KEY")
        best = store.catalog.best([task_key], [target_key]).get((task_key, target_key))
        if best is None:
            raise Refused("nothing is known of that task on that target")
        return best.schedule
    return schedules[_only_key("schedule", choice, [key for key in schedules if key.startswith(choice)])]


def _only_key(noun: str, prefix: str, keys: Collection[str]) -> str:
    """The only key with that prefix. Raises Refused."""
    if len(keys) != 1:
        count_text = "there is none" if not keys else f"there are {len(keys)}"
        raise Refused(f"{quote(prefix, 80)} must be the key of one {noun} of the database, or its begin; {count_text}")
    [key] = keys
    return key


def render(console: Console, data: dict[str, Any]) -> None:
    """Print which schedule was taken back, or counts again."""
    from tunewright.search_space.schedule import Schedule

    schedule = printable(Schedule.from_json(data["schedule"]))
    records = counted(data["records"], "record")
    done = f"taken back, and offered no more; {KEPT_NOTE}" if data["voided"] else "counts again"
    console.print(f"{schedule}, {records}: {done}", soft_wrap=True)
    if data["voided"]:
        undo = f"tunewright void {data['task']} --target {data['target']} --schedule {data['schedule_key']} --undo"
        console.print(f"to lift that: {undo}", soft_wrap=True)
