"""Kept: models that stay on their defaults, as their last job found nothing that makes them faster as a whole.

What is best for a task by itself stays the best for it, and other models use it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tunewright.codegen.target import Target
from tunewright.db.jobs import JobState
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.sketches import default_schedule

from ..units import in_s
from .found import Found, Match, unmeasured

if TYPE_CHECKING:
    from tunewright.db.sql_store import SqlStore

DEFAULTS_KEPT = "defaults_kept"
"""What a job's result says of such a model as its `outcome`: see `jobs.report`."""

LOOKED_AT = 16
"""Jobs of a model that are gone through for one of the same tasks: with other dimensions it has others."""


def kept_defaults(
    store: SqlStore, model_sha256: str, found: Mapping[str, Found], target: Target
) -> dict[str, Found] | None:
    """What the tasks of a model run on where its last job kept the defaults, timed beside the rest; None elsewhere.

    `found` is what is best for each of them. Raises StoreError.
    """
    result = _last_result(store, model_sha256, found.keys(), target)
    if result is None or result.get("outcome") != DEFAULTS_KEPT:
        return None
    reported = {one["key"]: one for one in result["tasks"]}
    return {key: _default(one, target, reported[key]) for key, one in found.items()}


def _last_result(
    store: SqlStore, model_sha256: str, task_keys: Collection[str], target: Target
) -> Mapping[str, Any] | None:
    states = (JobState.SUCCEEDED, JobState.PAUSED)
    for job in store.jobs.list(states, model_sha256=model_sha256, target_key=target.key, limit=LOOKED_AT):
        if job.result is not None and {task.task_key for task in job.spec.tasks} == set(task_keys):
            return job.result
    return None


def _default(best: Found, target: Target, reported: Mapping[str, Any]) -> Found:
    """The default with its time; without one where the model does not run the task, so that it stays so."""
    task, default_s = best.task, in_s(reported["default_ms"])
    if not reported["chosen"] or default_s is None:
        return unmeasured(task, target)
    low_s, high_s = map(in_s, reported["default_interval_ms"] or (None, None))
    provenance = best.measurement.provenance if best.measurement and best.confirmed else {}  # of the same comparison
    measured = Measurement(Status.OK, median_s=default_s, low_s=low_s, high_s=high_s, provenance=provenance)
    return Found(task, Match.EXACT, default_schedule(task, target), measured, confirmed=True)
