"""Predictor: picks schedules that were not measured, by cost models. Prediction: the time of one, and its reasons."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tunewright.codegen.target import CUDA, Target
from tunewright.costmodel.model import CostModel, Trials, TrialTimes
from tunewright.costmodel.validation import MEDIAN_OF_NORMAL
from tunewright.costmodel.xgb import Contribution, XGBModel
from tunewright.db.errors import StoreError
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.search_space.space import Rows, Space

from ..units import in_ms
from .experience import Experience, learn, proven_experience
from .pick_file import PickFile
from .result import Pick

if TYPE_CHECKING:
    from tunewright.db.store import Store

    from .near_picks import NearPicks

SAMPLED = 1000
"""Points of each space that a pick is made among, beside those around the default."""

CLEAR: Mapping[str, float] = {"cpu": 0.03, CUDA: 0.25}
"""Expected gain over the default that a pick needs, in log2, by kind of target: 2 and 19%. The default is an expert's
rule. On GPUs the base model expects up to 0.22 from tiles that were not timed, of products for which no search found
anything faster than the default. Of picks among trials of tasks held out, 0.1% is lost by the difference.
"""

PAUSE_S = 60.0
"""Seconds between two checks for new trials or snapshots."""

PICKED = 10_000
"""Picks kept in memory."""

_log = logging.getLogger("tunewright.lookup")


class Predictor:
    """Picks schedules by models of one store, one for each kind of target. Threads may share it.

    A model is read, or fitted where there is much to learn, in a thread of its own when it is first asked for, and
    again as trials are added or another process has learned from them. Nobody waits for it: until then there is no
    pick. A pick for a task and target stays the same until the next model.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        # By kind of target; with the digest of the snapshot that it stands on, None where that is the base model alone.
        self._models: dict[str, tuple[str | None, CostModel]] = {}
        self._check_times_s: dict[str, float] = {}  # by kind, when it was last looked at
        self._thread: threading.Thread | None = None
        self._picks: OrderedDict[tuple[str, ...], Pick | None] = OrderedDict()  # by task, target and rival, if any

    def pick(self, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
        """The point that the model takes for the fastest, not one of `failed` (keys).

        None where there is no model yet, or none that it takes for clearly faster than the default.
        """
        model = self._model(target.kind)
        if model is None or not model.ready:
            return None
        return self._remembered((task.key, target.key), failed, lambda: pick_by(model, task, target, failed))

    def better(self, task: Task, target: Target, failed: Collection[str], rival: Schedule) -> Pick | None:
        """As `Picker.better`."""
        model = self._model(target.kind)
        if model is None or not model.ready:
            return None
        pick = self.pick(task, target, failed) or _default(task, target, failed)
        key = task.key, target.key, rival.key
        return self._remembered(key, failed, lambda: faster_than(model, task, target, pick, rival))

    def _remembered(
        self, key: tuple[str, ...], failed: Collection[str], make: Callable[[], Pick | None]
    ) -> Pick | None:
        """What was picked before, if it is none of `failed`; else what `make` gives."""
        with self._lock:
            if key in self._picks and ((known := self._picks[key]) is None or known.schedule.key not in failed):
                return known
        pick = make()
        with self._lock:
            self._picks[key] = pick
            while len(self._picks) > PICKED:
                self._picks.popitem(last=False)
        return pick

    def wait(self, timeout_s: float) -> None:
        """Until a model that is being made is there, or the time is over."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _model(self, kind: str) -> CostModel | None:
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            if not busy and time.monotonic() - self._check_times_s.get(kind, -PAUSE_S) >= PAUSE_S:
                self._check_times_s[kind] = time.monotonic()  # whatever comes of it, the next one is not begun at once
                self._thread = threading.Thread(target=self._learn, args=(kind,), name="tunewright-learn", daemon=True)
                self._thread.start()
            _, model = self._models.get(kind, (None, None))
            return model

    def _learn(self, kind: str) -> None:
        """In the thread: load the newest model, unless it is the loaded one."""
        try:
            learn(self._store, kind)
            known = proven_experience(self._store, kind)
        except StoreError as error:  # whoever looks something up is told the same
            _log.info("no cost model: %s", error)
            return
        sha256 = known.snapshot.sha256 if known.snapshot else None
        if kind in self._models and self._models[kind][0] == sha256:
            return
        with self._lock:
            self._models[kind] = sha256, XGBModel(known.learned)
            self._picks.clear()


class FixedPredictor:
    """Picks by the model of the first use. See `Picker`.

    `store` None: by the base model alone. Where a `folder` is given, picks are taken from there, and kept by `save`.
    `near` has picks for the model at other sizes, which are taken over.
    """

    def __init__(self, store: Store | None, folder: Path | None = None, near: NearPicks | None = None) -> None:
        self._store, self._folder, self._near = store, folder, near
        self._experiences: dict[str, Experience] = {}  # by kind of target
        self._models: dict[str, CostModel] = {}  # likewise
        self._files: dict[str, PickFile | None] = {}  # by key of target

    def pick(self, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
        """The fastest point by the model, as `Picker.pick`. Raises StoreError."""
        known = self._experience(target.kind)
        if known.learned is None:
            return None
        file = None if failed else self._file(target, known)
        if file is not None and task.key in file:
            return file[task.key]
        near = self._near if not failed else None
        if near is not None and (taken := near.find(task, target)) is not None:
            return taken.pick
        pick = pick_by(self._model(target.kind), task, target, failed)
        if near is not None:
            near.add(task, target, pick)
        if file is not None:
            file[task.key] = pick
        return pick

    def better(self, task: Task, target: Target, failed: Collection[str], rival: Schedule) -> Pick | None:
        """As `Picker.better`. Raises StoreError."""
        if self._experience(target.kind).learned is None:
            return None
        pick = self.pick(task, target, failed) or _default(task, target, failed)
        return faster_than(self._model(target.kind), task, target, pick, rival)

    def _model(self, kind: str) -> CostModel:
        if kind not in self._models:
            self._models[kind] = XGBModel(self._experience(kind).learned)
        return self._models[kind]

    def save(self) -> None:
        """Keep the picks that were made."""
        for file in filter(None, self._files.values()):
            file.save()

    def _experience(self, kind: str) -> Experience:
        if kind not in self._experiences:
            self._experiences[kind] = proven_experience(self._store, kind)
        return self._experiences[kind]

    def _file(self, target: Target, known: Experience) -> PickFile | None:
        """The file of picks of a target; None where there is no folder, or a layer has no digest."""
        if target.key not in self._files:
            digests = known.sha256s
            self._files[target.key] = (
                PickFile.of(self._folder, digests, target.key) if self._folder is not None and digests else None
            )
        return self._files[target.key]


def pick_by(model: CostModel, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
    """The point with the highest score of those drawn; None where that is not clearly above the default's.

    Of sketches that the model knows alone; where the default is of another, None.
    """
    task_spaces = spaces(task, target)
    default = task_spaces[0].default
    if default.key not in failed and not model.knows(task_spaces[0]):
        return None
    best: Schedule | None = None
    best_score = least = -np.inf
    for space in filter(model.knows, task_spaces):
        rows = _sample(space)
        scores = model.score(task, target, space, rows)
        if space.default == default and default.key not in failed:
            least = float(scores[0]) + CLEAR[target.kind]
        for number in np.argsort(-scores, kind="stable"):
            schedule = space.schedule(rows[number])
            if schedule.key not in failed:
                if scores[number] > best_score:
                    best, best_score = schedule, float(scores[number])
                break
    return Pick(best, float(np.exp2(-best_score))) if best is not None and best_score > least else None


def _default(task: Task, target: Target, failed: Collection[str]) -> Pick | None:
    """The default in the place of a pick; None where it fails. Nobody asks for its time."""
    schedule = default_schedule(task, target)
    return None if schedule.key in failed else Pick(schedule, 0.0)


def faster_than(model: CostModel, task: Task, target: Target, pick: Pick | None, rival: Schedule) -> Pick | None:
    """The pick, with its expected time, if the model expects it to be clearly faster than a rival, and knows both."""
    points = [locate(task, target, schedule) for schedule in (pick.schedule, rival)] if pick is not None else []
    scores = [model.score(task, target, *point)[0] for point in points if point is not None and model.knows(point[0])]
    if pick is None or len(scores) < 2 or scores[0] <= scores[1] + CLEAR[target.kind]:
        return None
    return pick._replace(time_s=float(np.exp2(-scores[0])))


def _sample(space: Space) -> Rows:
    """The default first, then what is around it, and others; always the same."""
    default = space.row(space.default)[None]
    return np.concatenate([default, space.neighbours(default), space.sample(SAMPLED, np.random.default_rng(0))])


MOST_OWN = 1000
"""Trials of a task that are learned from: half a second of it."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected time of a schedule, by the cost model and its task's own trials."""

    time_s: float
    deviation: float  # of log2 of the time: 0.1 is some 7%; no less than the model's on tasks held out
    contributions: tuple[Contribution, ...]  # what moves it most, the largest first
    judged_on: int = 0  # tasks that the model had not learned from, by which it is known how far it is off

    def to_json(self) -> dict[str, Any]:
        return {
            "expected_ms": in_ms(self.time_s),
            "deviation": self.deviation,
            "judged_on": self.judged_on,
            "contributions": [
                {"feature": item.feature, "value": item.value, "log2_speed": item.log2_speed}
                for item in self.contributions
            ],
        }


def predict(store: Store | None, task: Task, target: Target, schedule: Schedule) -> Prediction | None:
    """The prediction for a schedule; None without a model, or where the schedule is in no searched space.

    Raises StoreError.
    """
    known = proven_experience(store, target.kind)
    trials = store.trials.sample(task.key, target.key, MOST_OWN) if store is not None else []
    model = train(known, task, target, [(line.schedule, line) for line in trials])
    point = locate(task, target, schedule)
    if model is None or point is None:
        return None
    [score], [deviation] = model.score(task, target, *point), model.deviation(task, target, *point)
    deviation = max(float(deviation), _usual_deviation(known))
    judged_on = int((known.quality or {}).get("tasks", 0))
    return Prediction(float(np.exp2(-score)), deviation, tuple(model.explain(task, target, *point)[0]), judged_on)


def train(
    known: Experience, task: Task, target: Target, trials: Sequence[tuple[Schedule, TrialTimes]]
) -> XGBModel | None:
    """The cost model, trained further on the task's trials; None where there is none yet."""
    model = XGBModel(known.learned)
    if trials:
        model.fit([Trials.of(task, target, space, trials) for space in spaces(task, target)])
    return model if model.ready else None


def locate(task: Task, target: Target, schedule: Schedule) -> tuple[Space, Rows] | None:
    """A schedule as the one point of its space; None where it is in none of those that are searched."""
    for space in spaces(task, target):
        rows, _ = space.rows([schedule])
        if len(rows):
            return space, rows
    return None


def _usual_deviation(known: Experience) -> float:
    """The deviation of predicted times on tasks held out, zero where it is not known.

    The members of a model agree on what it has learned from, whether or not they are right.
    """
    error = (known.quality or {}).get("time_error")
    return 0.0 if error is None else float(np.log2(1.0 + error)) / MEDIAN_OF_NORMAL
