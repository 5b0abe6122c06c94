"""Fit of the base model to measured trials, and its validation on tasks held out."""

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

from tunewright.bench.files import ROOT, write_whole
from tunewright.bench.training.first_picks import judge_first_picks
from tunewright.bench.training.tasks import Loops, is_held_out_or_reserved
from tunewright.bench.training.trial_files import MEASURED, example, read_entries, read_expected
from tunewright.codegen.target import Target
from tunewright.costmodel.features import features, names_of, version_of
from tunewright.costmodel.forest import RANKS, SQUARES, Forest, Growth
from tunewright.costmodel.labels import TrainingData
from tunewright.costmodel.layered_model import LayeredModel
from tunewright.costmodel.model import AnalyticModel, Scores, Trials, group_trials
from tunewright.costmodel.roofline import floor_s
from tunewright.costmodel.validation import Quality, calibrate, validate
from tunewright.costmodel.xgb import XGBModel
from tunewright.graph.task import Task
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space
from tunewright.tuner.errors import Refused

MEMBERS = 2
"""Their mean is better than either, and their difference shows how well a point is known. More members of smaller
trees, which take as long to predict, have half a percent fewer pairs in the right order."""

GROWTH = Growth(rounds=240, max_depth=7, eta=0.08, colsample_bytree=0.5, min_child_weight=5.0)
REACH = Growth(rounds=60, max_depth=4, eta=0.1, colsample_bytree=0.5)

NDCG = "rank:ndcg"
OBJECTIVES = (RANKS, NDCG, SQUARES)
"""Objectives that are compared; the first is used."""

SEED = 0

PACKAGE = ROOT / "costmodel" / "base_model"
"""The folder of the base models that are part of the package."""


@dataclass(frozen=True, slots=True)
class Sets:
    """Trials to learn from, and of other tasks to judge by. `expected`: predictions, see `trial_files.EXPECTED`."""

    measured: Sequence[Trials]
    expected: Sequence[Trials]
    held_out: Sequence[Trials]

    @staticmethod
    def of(measured: Sequence[Trials], expected: Sequence[Trials], reserved: Collection[Loops]) -> Sets:
        """Split the trials. `reserved`: loops whose tasks are held out, whatever their keys."""
        tasks_by_key = {task_trials.task.key: task_trials.task for task_trials in (*measured, *expected)}
        out = {key for key, task in tasks_by_key.items() if is_held_out_or_reserved(task, reserved)}
        return Sets(
            [task_trials for task_trials in measured if task_trials.task.key not in out],
            [task_trials for task_trials in expected if task_trials.task.key not in out],
            [task_trials for task_trials in measured if task_trials.task.key in out],
        )

    @staticmethod
    def read(target_kind: str, reserved: Collection[Loops]) -> tuple[Sets, dict[str, str]]:
        """The trials for a kind of target that are kept in files, and what measured them. Raises Refused."""
        entries = [entry for entry in read_entries(MEASURED) if entry.target.kind == target_kind]
        if not entries:
            raise Refused(f"nothing is kept in {MEASURED} of such targets: {target_kind}")
        expected = [entry for entry in read_expected() if entry.target.kind == target_kind]
        trials, expected_trials = (list(group_trials(map(example, kept))) for kept in (entries, expected))
        provenance = sorted({item for entry in entries for item in entry.record.measurement.provenance.items()})
        machine = {name: ", ".join(text for key, text in provenance if key == name) for name, _ in provenance}
        return Sets.of(trials, expected_trials, reserved), machine

    @property
    def training_trials(self) -> Sequence[Trials]:
        """All trials to learn from."""
        return [*self.measured, *self.expected]


class Ranking:
    """A forest whose scores are no speeds, for comparing objectives."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        return np.asarray(self._forest.predict(features(task, target, space, rows).values).mean(axis=0), np.float64)

    def deviation(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        return np.zeros(len(rows))


def fit_model(sets: Sets) -> LayeredModel:
    """A model of the training trials, with scales that are calibrated on a part that another model has not seen."""
    inner, outer = _split(sets.measured)
    scales = calibrate(_grow([*inner, *_split(sets.expected)[0]]), outer)
    return replace(_grow(sets.training_trials), scale=scales.scale, spread_scale=scales.spread_scale)


def _split(trials: Sequence[Trials]) -> tuple[list[Trials], list[Trials]]:
    """Trials of four fifths of the tasks, and of the rest, by other digits of the key than `is_held_out` uses."""
    out = [int(task_trials.task.key[:8], 16) % 5 == 0 for task_trials in trials]
    return (
        [task_trials for task_trials, is_out in zip(trials, out, strict=True) if not is_out],
        [task_trials for task_trials, is_out in zip(trials, out, strict=True) if is_out],
    )


def _grow(trials: Sequence[Trials]) -> LayeredModel:
    data = TrainingData.of(trials)
    return LayeredModel(
        (data.forest(GROWTH, members=MEMBERS, seed=SEED),), _reach(data.sets), kind=data.kind, sketches=data.sketches
    )


def _reach(sets: Sequence[Trials]) -> Forest:
    """A forest that predicts how near the default of a task comes to its roofline."""
    rows, nearness = [], []
    for task_trials in sets:
        default = task_trials.space.row(task_trials.space.default)
        [known] = np.nonzero((task_trials.rows == default).all(axis=1))
        if len(known) and spaces(task_trials.task, task_trials.target)[0].sketch == task_trials.space.sketch:
            time_s = task_trials.times_s[known[0]]
            if np.isfinite(time_s):
                rows.append(features(task_trials.task, task_trials.target, task_trials.space, default[None]).values[0])
                nearness.append(np.log2(time_s / floor_s(task_trials.task, task_trials.target)))
    groups = np.arange(len(rows))
    return Forest.fit(
        np.stack(rows), np.array(nearness, np.float32), groups, REACH, members=1, seed=SEED, objective=SQUARES
    )


def compare_objectives(sets: Sets) -> dict[str, dict[str, float | None]]:
    """The quality of each objective, and of the analytic model, on the tasks held out."""
    qualities: dict[str, Quality | None] = {"analytic": validate(AnalyticModel(), sets.held_out)}
    data = TrainingData.of(sets.training_trials)
    whole = replace(data, speeds=np.floor(30 * data.speeds))  # NDCG takes whole numbers
    for objective in OBJECTIVES:
        training_data = whole if objective == NDCG else data
        qualities[objective] = validate(
            Ranking(training_data.forest(GROWTH, members=1, seed=SEED, objective=objective)), sets.held_out
        )
    ranks = ("pairwise", "pairwise_all", "peak_1", "peak_5")  # the scores of some are no times
    return {
        name: {rank: quality.to_json()[rank] for rank in ranks}
        for name, quality in qualities.items()
        if quality is not None
    }


def write(folder: Path, kind: str, sets: Sets, machine: Mapping[str, str]) -> dict[str, Any]:
    """Fit and judge the model, and write it and its card into `folder`. Returns the card.

    `machine`: what measured the trials.
    """
    layered_model = fit_model(sets)
    content = layered_model.write()
    quality = validate(XGBModel(layered_model), sets.held_out)
    names = names_of(kind)
    gains = layered_model.layers[0].gains(len(names))
    card = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "features": version_of(kind),
        "made": datetime.now(UTC).date().isoformat(),
        "learned_from": _trial_counts(sets.measured),
        "told": _trial_counts(sets.expected) | {"targets": _targets(sets.expected)},
        "held_out": _trial_counts(sets.held_out),
        "machine": dict(machine),
        "targets": _targets(sets.measured),
        "growth": {"members": MEMBERS, "rounds": GROWTH.rounds, "max_depth": GROWTH.max_depth, "eta": GROWTH.eta},
        "scale": layered_model.scale,
        "spread_scale": layered_model.spread_scale,
        "quality": quality.to_json() if quality else None,
        "quality_by_processor": quality_by_processor(layered_model, sets.held_out),
        "first_picks": {
            "base": judge_first_picks(XGBModel(layered_model), sets.held_out),
            "analytic": judge_first_picks(AnalyticModel(), sets.held_out),
        },
        "objectives": compare_objectives(sets),
        "features_that_count": {names[n]: round(float(gains[n]), 4) for n in np.argsort(-gains)[:20]},
    }
    write_whole(folder / f"{kind}.xz", content)
    write_whole(folder / f"{kind}.json", f"{json.dumps(card, indent=2)}\n".encode())
    return card


def quality_by_processor(layered_model: LayeredModel, held_out: Sequence[Trials]) -> dict[str, dict[str, Any]]:
    """The quality on each kind of processor, by LLVM's name."""
    qualities = {}
    for cpu in sorted({task_trials.target.cpu for task_trials in held_out}):
        quality = validate(
            XGBModel(layered_model), [task_trials for task_trials in held_out if task_trials.target.cpu == cpu]
        )
        if quality is not None:
            qualities[cpu] = quality.to_json()
    return qualities


def _targets(trials: Sequence[Trials]) -> list[str]:
    return sorted({str(task_trials.target) for task_trials in trials})


def _trial_counts(trials: Sequence[Trials]) -> dict[str, Any]:
    """Numbers of tasks, trials and failed trials, and trials by operator."""
    ops: Counter[str] = Counter()
    for task_trials in trials:
        ops[task_trials.task.op] += len(task_trials.times_s)
    tasks = {task_trials.task.key for task_trials in trials}
    failed = sum(int(np.isinf(task_trials.times_s).sum()) for task_trials in trials)
    return {
        "tasks": len(tasks),
        "trials": sum(ops.values()),
        "failed": failed,
        "trials_by_op": dict(ops.most_common()),
    }
