"""What is known of tasks: the ladder from the best that was measured down to the default schedule.
Read first: `ladder`; `found` is what comes of it.
May import: what `tuner` may. Nothing heavy is imported before a database is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .found import TRANSFERRED, Basis, Found, Match, Source, measured_s, unmeasured
from .kept import Kept, kept_defaults
from .ladder import Ladder, Recorded, lookup, picked

if TYPE_CHECKING:
    from tunewright.db.sql_store import SqlStore

__all__ = [
    "TRANSFERRED",
    "Basis",
    "Found",
    "Ladder",
    "Match",
    "Recorded",
    "Source",
    "look_up",
    "look_up_in",
    "lookup",
    "measured_s",
    "unmeasured",
]


def look_up_in(db: str | None, tasks: Sequence[Task], target: Target) -> tuple[dict[str, Found], Kept | None]:
    """What to use for tasks by the database of that URL, all rungs of the ladder; its cost model is read if need be.

    They are all tasks of a model: also what was told of them where that keeps its defaults, see `kept`.

    Where the default one is not there yet, what the base model knows is known. Raises NoDatabase where one was named
    and is not there, StoreError where it can't be read.
    """
    from tunewright.db.reading import NoDatabase, open_reader

    from ..settings import settings

    try:
        with open_reader(db or settings().db) as store:
            found = look_up(store, tasks, target)
            return found, kept_defaults(store, found, target.key)
    except NoDatabase:
        if db is not None:
            raise
    return look_up(None, tasks, target), None


def look_up(store: SqlStore | None, tasks: Sequence[Task], target: Target) -> dict[str, Found]:
    """The same by an open database; by what the base model knows where there is none. Raises StoreError."""
    from .predictor import FixedPredictor

    predictor = FixedPredictor(store)
    if store is not None:
        return Ladder(store, predictor).find(tasks, target)
    return {task.key: picked(predictor, task, target) or unmeasured(task, target) for task in tasks}
