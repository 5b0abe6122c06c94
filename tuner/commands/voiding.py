"""`tunewright void`: taking a schedule back, so that nothing offers it any more, and lifting that."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from rich.console import Console

from tunewright.db.errors import NotFound
from tunewright.db.exchange import LONGEST_REASON
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.search_space.schedule import Schedule

from ..errors import Refused
from ..settings import PATIENCE_S, settings
from ..targets import local_target
from ..text import counted, printable

KEY = re.compile("[0-9a-f]{6,64}")
"""A key, or the begin of one."""

BEST = "best"


def void(
    task: str,
    reason: str | None,
    schedule: str = BEST,
    target: str = "auto",
    threads: int | None = None,
    db: str | None = None,
    *,
    undo: bool = False,
) -> dict[str, Any]:
    """Take a schedule of a task back on a target, or let it count again. Raises Refused where there is none."""
    if undo == bool(reason):
        raise Refused("--undo takes no --reason" if undo else "say why, for those who come later: --reason TEXT")
    if reason is not None and not 0 < len(reason.strip()) <= LONGEST_REASON:
        raise Refused(f"--reason has {len(reason)} characters; it must have 1 to {LONGEST_REASON}")
    with open_store(db or settings().db, patience_s=PATIENCE_S) as store:
        task_key = _one("task", task, store.task_keys(task))
        target_key = _target(store, target, threads)
        chosen = _schedule(store, task_key, target_key, schedule, undo)
        try:
            if undo:
                count = store.voids.lift(task_key, target_key, chosen.key)
            else:
                count = store.voids.void(task_key, target_key, chosen.key, reason or "")
        except NotFound as error:
            raise Refused(str(error)) from error
        return {
            "task": task_key,
            "target": target_key,
            "schedule_key": chosen.key,
            "schedule": chosen.to_json(),
            "records": count,
            "voided": not undo,
        }


def _target(store: SqlStore, name: str, threads: int | None) -> str:
    """Key of a target: of a device here, or of one that the database knows by that key."""
    if KEY.fullmatch(name):
        return _one("target", name, [one.key for one in store.targets() if one.key.startswith(name)])
    return local_target(name, threads).key


def _schedule(store: SqlStore, task_key: str, target_key: str, wanted: str, undo: bool) -> Schedule:
    known = {one.key: one for one in store.voids.schedules(task_key, target_key)}
    if wanted == BEST:
        if undo:
            raise Refused("name the schedule: --schedule KEY")
        best = store.known.best([task_key], [target_key]).get((task_key, target_key))
        if best is None:
            raise Refused("nothing is known of that task on that target")
        return best.schedule
    return known[_one("schedule", wanted, [key for key in known if key.startswith(wanted)])]


def _one(what: str, given: str, keys: Collection[str]) -> str:
    """The one key that is meant. Raises Refused."""
    if len(keys) != 1:
        found = "there is none" if not keys else f"there are {len(keys)}"
        raise Refused(f"{given[:80]!r} must be the key of one {what} of the database, or its begin; {found}")
    [key] = keys
    return key


def render(console: Console, data: dict[str, Any]) -> None:
    """What was taken back, or counts again."""
    schedule = printable(Schedule.from_json(data["schedule"]))
    records = counted(data["records"], "record")
    done = "taken back; nothing offers it any more" if data["voided"] else "counts again"
    console.print(f"{schedule}, {records}: {done}", soft_wrap=True)
    if data["voided"]:
        undo = f"tunewright void {data['task']} --target {data['target']} --schedule {data['schedule_key']} --undo"
        console.print(f"to lift that: {undo}", soft_wrap=True)
