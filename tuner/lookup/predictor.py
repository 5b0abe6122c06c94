"""Predictor: picks schedules that nobody measured, by what cost models know."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.model import CostModel
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.errors import StoreError
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space

from .experience import Taught, learn, proven
from .ladder import Pick

SAMPLED = 1000
"""Points of each space that a pick is made among, beside those around the default."""

CLEAR = 0.03
"""How much faster than the default a pick must be expected to be, as log2: 2%. The default is an expert's rule."""

PAUSE_S = 60.0
"""Between two looks at whether there is more to learn from."""

PICKED = 10_000
"""Picks kept in memory."""

_log = logging.getLogger("tunewright.lookup")


class Predictor:
    """Picks schedules by models of one store, one for each kind of target. Threads may share it.

    A model is read, or fitted where there is much to learn, in a thread of its own when it is first asked for, and
    again as trials are added or another process has learned from them. Nobody waits for it: until then there is no
    pick. A pick for a task and target stays the same until the next model.
    """

    def __init__(self, store: Taught) -> None:
        self._store = store
        self._lock = threading.Lock()
        # By kind of target; with the digest of the snapshot that it stands on, None where that is the base model alone.
        self._models: dict[str, tuple[str | None, CostModel]] = {}
        self._looked_s: dict[str, float] = {}  # by kind, when it was last looked at
        self._thread: threading.Thread | None = None
        self._picks: OrderedDict[tuple[str, str], Pick | None] = OrderedDict()

    def pick(self, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
        """The point that the model takes for the fastest, not one of `failed` (keys).

        None where there is no model yet, or none that it takes for clearly faster than the default.
        """
        model = self._model(target.kind)
        if model is None or not model.ready:
            return None
        place = task.key, target.key
        with self._lock:
            if place in self._picks and ((known := self._picks[place]) is None or known.schedule.key not in failed):
                return known
        picked = picked_by(model, task, target, failed)
        with self._lock:
            self._picks[place] = picked
            while len(self._picks) > PICKED:
                self._picks.popitem(last=False)
        return picked

    def wait(self, timeout_s: float) -> None:
        """Until a model that is being made is there, or the time is over."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _model(self, kind: str) -> CostModel | None:
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            if not busy and time.monotonic() - self._looked_s.get(kind, -PAUSE_S) >= PAUSE_S:
                self._looked_s[kind] = time.monotonic()  # whatever comes of it, the next one is not begun at once
                self._thread = threading.Thread(target=self._learn, args=(kind,), name="tunewright-learn", daemon=True)
                self._thread.start()
            _, model = self._models.get(kind, (None, None))
            return model

    def _learn(self, kind: str) -> None:
        """In the thread: make a model where there is none, or what is known is more than it stands on."""
        try:
            learn(self._store, kind)
            known = proven(self._store, kind)
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
    """Picks by what is known now, which is read when it is first needed. See `Picks`.

    `store` None: by the base model alone.
    """

    def __init__(self, store: Taught | None) -> None:
        self._store = store
        self._models: dict[str, CostModel] = {}  # by kind of target

    def pick(self, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
        """See `Picks`. Raises StoreError."""
        if target.kind not in self._models:
            self._models[target.kind] = XGBModel(proven(self._store, target.kind).learned)
        model = self._models[target.kind]
        return picked_by(model, task, target, failed) if model.ready else None


def picked_by(model: CostModel, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
    """The point with the highest score of those drawn; None where that is not clearly above the default's."""
    offered = spaces(task, target)
    default = offered[0].default
    best: Schedule | None = None
    best_score = least = -np.inf
    for space in offered:
        rows = _drawn(space)
        scores = model.score(task, target, space, rows)
        if space.default == default and default.key not in failed:
            least = float(scores[0]) + CLEAR
        for place in np.argsort(-scores, kind="stable"):
            schedule = space.schedule(rows[place])
            if schedule.key not in failed:
                if scores[place] > best_score:
                    best, best_score = schedule, float(scores[place])
                break
    return Pick(best, float(np.exp2(-best_score))) if best is not None and best_score > least else None


def _drawn(space: Space) -> Rows:
    """The default first, then what is around it, and others; always the same."""
    default = space.row(space.default)[None]
    return np.concatenate([default, space.neighbours(default), space.sample(SAMPLED, np.random.default_rng(0))])
