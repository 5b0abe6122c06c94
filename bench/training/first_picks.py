"""First picks: how near a task comes to the best of its trials with the schedule that it gets without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunewright.costmodel.model import TaskOnTarget, Trials
from tunewright.costmodel.validation import Scorer
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.lookup.predictor import CLEAR


class _FirstPick(NamedTuple):
    """Speeds of a task's default and of a model's pick, relative to the best of its trials; 0 of failures."""

    default: float
    pick: float


def judge_first_picks(model: Scorer, trials: Sequence[Trials]) -> dict[str, float | int]:
    """Means and least speeds of defaults, and of a model's picks, as lookups pick but among trials alone.

    Only of tasks whose default is among the trials. Of picks that nobody timed, nothing is known.
    """
    by_task: dict[TaskOnTarget, list[Trials]] = {}
    for task_trials in trials:
        by_task.setdefault(task_trials.key, []).append(task_trials)
    picks = [pick for pick in (_first_pick(model, sets) for sets in by_task.values()) if pick is not None]
    if not picks:
        return {"tasks": 0}
    return {
        "tasks": len(picks),
        **_summary("default", [pick.default for pick in picks]),
        **_summary("pick", [pick.pick for pick in picks]),
    }


def _summary(name: str, speeds: Sequence[float]) -> Mapping[str, float]:
    return {name: round(float(np.mean(speeds)), 4), f"least_{name}": round(min(speeds), 4)}


def _first_pick(model: Scorer, sets: Sequence[Trials]) -> _FirstPick | None:
    """None where the default, or all of a task, was not timed."""
    task, target = sets[0].task, sets[0].target
    default = default_schedule(task, target)
    scores = np.concatenate([model.score(task, target, each.space, each.rows) for each in sets])
    times_s = np.concatenate([each.times_s for each in sets])
    is_default = np.concatenate([_is_at(each, default.sketch) for each in sets])
    best_s = times_s.min(initial=np.inf)
    if not is_default.any() or not np.isfinite(best_s):
        return None
    place, first = int(np.flatnonzero(is_default)[0]), int(scores.argmax())
    chosen = first if scores[first] > scores[place] + CLEAR[target.kind] else place
    return _FirstPick(float(best_s / times_s[place]), float(best_s / times_s[chosen]))


def _is_at(trials: Trials, sketch: str) -> NDArray[np.bool_]:
    """Which trials are of the default of their space, where that is of this sketch."""
    if trials.space.sketch != sketch:
        return np.zeros(len(trials.rows), np.bool_)
    return np.asarray((trials.rows == trials.space.row(trials.space.default)).all(axis=1))
