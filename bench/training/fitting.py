"""Fitting the base model to what was measured, and judging it by tasks that it has not learned from."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.bench.files import write_whole
from tunewright.bench.training.tasks import Loops, is_held_out_or_reserved
from tunewright.codegen.target import Target
from tunewright.costmodel.features import NAMES, VERSION, features
from tunewright.costmodel.forest import RANKS, SQUARES, Forest, Growth
from tunewright.costmodel.judging import Quality, calibrated, judge
from tunewright.costmodel.labels import Lesson
from tunewright.costmodel.learned import Learned
from tunewright.costmodel.model import AnalyticModel, Scores, Trials
from tunewright.costmodel.roofline import floor_s
from tunewright.costmodel.xgb import XGBModel
from tunewright.graph.task import Task
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space

MEMBERS = 2
"""Their mean is better than either, and their difference says how well a point is known. More of smaller trees, which
take as long to predict, order half a percent of the pairs less rightly."""

GROWTH = Growth(rounds=240, max_depth=7, eta=0.08, colsample_bytree=0.5, min_child_weight=5.0)
REACH = Growth(rounds=60, max_depth=4, eta=0.1, colsample_bytree=0.5)

NDCG = "rank:ndcg"
OBJECTIVES = (RANKS, NDCG, SQUARES)
"""What is compared: the first is used."""

SEED = 0


@dataclass(frozen=True, slots=True)
class Sets:
    """Trials to learn from, and of other tasks to judge by. `told` are as if: see `kept.TOLD`."""

    measured: Sequence[Trials]
    told: Sequence[Trials]
    held_out: Sequence[Trials]

    @staticmethod
    def of(measured: Sequence[Trials], told: Sequence[Trials], reserved: Collection[Loops]) -> Sets:
        """`reserved`: what tasks are held out for their loops, whatever their keys say."""
        known = {each.task.key: each.task for each in (*measured, *told)}
        out = {key for key, task in known.items() if is_held_out_or_reserved(task, reserved)}
        return Sets(
            [each for each in measured if each.task.key not in out],
            [each for each in told if each.task.key not in out],
            [each for each in measured if each.task.key in out],
        )

    @property
    def learned(self) -> Sequence[Trials]:
        """All to learn from."""
        return [*self.measured, *self.told]


class Ranking:
    """A forest whose labels are no speeds: for comparing objectives."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        return np.asarray(self._forest.predict(features(task, target, space, rows).values).mean(axis=0), np.float64)

    def deviation(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        return np.zeros(len(rows))


def fitted(sets: Sets) -> Learned:
    """A model of what is to be learned, with scales that were measured on a part that another did without."""
    inner, outer = _split(sets.measured)
    scales = calibrated(_grown([*inner, *_split(sets.told)[0]]), outer)
    return replace(_grown(sets.learned), scale=scales.scale, spread_scale=scales.spread_scale)


def _split(trials: Sequence[Trials]) -> tuple[list[Trials], list[Trials]]:
    """Four fifths of the tasks, and the rest: by another digit of the key than `is_held_out` looks at."""
    out = [int(each.task.key[:8], 16) % 5 == 0 for each in trials]
    return (
        [each for each, is_out in zip(trials, out, strict=True) if not is_out],
        [each for each, is_out in zip(trials, out, strict=True) if is_out],
    )


def _grown(trials: Sequence[Trials]) -> Learned:
    lesson = Lesson.of(trials)
    return Learned((lesson.forest(GROWTH, members=MEMBERS, seed=SEED),), _reach(lesson.sets))


def _reach(sets: Sequence[Trials]) -> Forest:
    """Predicts how near the default of a task comes to the floor, from its features."""
    rows, nearness = [], []
    for each in sets:
        default = each.space.row(each.space.default)
        [known] = np.nonzero((each.rows == default).all(axis=1))
        if len(known) and spaces(each.task, each.target)[0].sketch == each.space.sketch:
            time_s = each.times_s[known[0]]
            if np.isfinite(time_s):
                rows.append(features(each.task, each.target, each.space, default[None]).values[0])
                nearness.append(np.log2(time_s / floor_s(each.task, each.target)))
    alone = np.arange(len(rows))
    return Forest.fit(
        np.stack(rows), np.array(nearness, np.float32), alone, REACH, members=1, seed=SEED, objective=SQUARES
    )


def compared(sets: Sets) -> dict[str, dict[str, float | None]]:
    """The quality of each objective, and of the estimate that has learned nothing, on the tasks held out."""
    found: dict[str, Quality | None] = {"analytic": judge(AnalyticModel(), sets.held_out)}
    lesson = Lesson.of(sets.learned)
    whole = replace(lesson, speeds=np.floor(30 * lesson.speeds))  # NDCG is of whole numbers
    for objective in OBJECTIVES:
        taught = whole if objective == NDCG else lesson
        found[objective] = judge(
            Ranking(taught.forest(GROWTH, members=1, seed=SEED, objective=objective)), sets.held_out
        )
    ranks = ("pairwise", "pairwise_all", "peak_1", "peak_5")  # the scores of some are no times
    return {
        name: {rank: quality.to_json()[rank] for rank in ranks}
        for name, quality in found.items()
        if quality is not None
    }


def write(folder: Path, kind: str, sets: Sets, machine: Mapping[str, str]) -> dict[str, Any]:
    """Fit, judge, and write the model and its card into the package; the card. `machine`: what measured the trials."""
    learned = fitted(sets)
    content = learned.write()
    quality = judge(XGBModel(learned), sets.held_out)
    gains = learned.layers[0].gains(len(NAMES))
    card = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "features": VERSION,
        "made": datetime.now(UTC).date().isoformat(),
        "learned_from": _described(sets.measured),
        "told": _described(sets.told) | {"targets": _targets(sets.told)},
        "held_out": _described(sets.held_out),
        "machine": dict(machine),
        "targets": _targets(sets.measured),
        "growth": {"members": MEMBERS, "rounds": GROWTH.rounds, "max_depth": GROWTH.max_depth, "eta": GROWTH.eta},
        "scale": learned.scale,
        "spread_scale": learned.spread_scale,
        "quality": quality.to_json() if quality else None,
        "quality_by_processor": by_processor(learned, sets.held_out),
        "objectives": compared(sets),
        "features_that_count": {NAMES[n]: round(float(gains[n]), 4) for n in np.argsort(-gains)[:20]},
    }
    write_whole(folder / f"{kind}.xz", content)
    write_whole(folder / f"{kind}.json", f"{json.dumps(card, indent=2)}\n".encode())
    return card


def by_processor(learned: Learned, held_out: Sequence[Trials]) -> dict[str, dict[str, Any]]:
    """The quality on each kind of processor, by what LLVM calls it."""
    found = {}
    for cpu in sorted({each.target.cpu for each in held_out}):
        quality = judge(XGBModel(learned), [each for each in held_out if each.target.cpu == cpu])
        if quality is not None:
            found[cpu] = quality.to_json()
    return found


def _targets(trials: Sequence[Trials]) -> list[str]:
    return sorted({str(each.target) for each in trials})


def _described(trials: Sequence[Trials]) -> dict[str, Any]:
    """What trials there are: tasks and trials in all, those that failed, and trials by operator."""
    ops: Counter[str] = Counter()
    for each in trials:
        ops[each.task.op] += len(each.times_s)
    tasks = {each.task.key for each in trials}
    failed = sum(int(np.isinf(each.times_s).sum()) for each in trials)
    return {
        "tasks": len(tasks),
        "trials": sum(ops.values()),
        "failed": failed,
        "trials_by_op": dict(ops.most_common()),
    }
