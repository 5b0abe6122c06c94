"""Kept: models that stay on their defaults, as their last job found nothing that makes them faster as a whole.

What is best for a task by itself stays the best for it, and other models use it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.sketches import default_schedule

from .found import Found, Match, seconds, unmeasured

if TYPE_CHECKING:
    from tunewright.db.sql_store import SqlStore

DEFAULTS_KEPT = "defaults_kept"
"""What a job's result says of such a model as its `outcome`: see `jobs.report`."""

TOLD = ("key", "chosen", "default_ms", "default_interval_ms", "default_schedule")
"""What is told of a task of such a model, out of the result of its job."""

Kept = Mapping[str, Mapping[str, Any]]
"""What is told of each task of such a model, by key."""


def kept_defaults(store: SqlStore, task_keys: Collection[str], target_key: str) -> Kept | None:
    """Of the model with these tasks, if its last job kept the defaults, what that told of them; else None.

    Raises StoreError.
    """
    job = store.jobs.last_of(task_keys, target_key)
    if job is None or job.result is None or job.result.get("outcome") != DEFAULTS_KEPT:
        return None
    return {one["key"]: {name: one[name] for name in TOLD} for one in job.result["tasks"]}


def on_defaults(found: Mapping[str, Found], target: Target, kept: Kept) -> dict[str, Found] | None:
    """What the tasks of such a model run on. `found` is what is best for each of them.

    None where this version has other defaults than those that were timed. Raises ValueError for what can't have been
    told of these tasks.
    """
    try:
        if any(default_schedule(one.task, target).key != kept[key]["default_schedule"] for key, one in found.items()):
            return None
        return {key: _default(one, target, kept[key]) for key, one in found.items()}
    except (KeyError, TypeError) as error:
        raise ValueError("it tells nothing of the tasks") from error


def _default(best: Found, target: Target, told: Mapping[str, Any]) -> Found:
    """The default with its time; without one where the model does not run the task, so that it stays so."""
    task = best.task
    if not told["chosen"] or told["default_ms"] is None:
        return unmeasured(task, target)
    low_s, high_s = map(seconds, told["default_interval_ms"]) if told["default_interval_ms"] else (None, None)
    provenance = best.measurement.provenance if best.measurement and best.confirmed else {}  # of the same comparison
    measured = Measurement(
        Status.OK, median_s=seconds(told["default_ms"]), low_s=low_s, high_s=high_s, provenance=provenance
    )
    return Found(task, Match.EXACT, default_schedule(task, target), measured, confirmed=True)
