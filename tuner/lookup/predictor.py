"""Predictor: a cost model of what a database has measured, fitted beside the work that it is for."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.examples import grouped
from tunewright.costmodel.model import CostModel
from tunewright.db.errors import StoreError
from tunewright.db.known import Known
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces

EXAMPLES = 6000
"""Trials that a model learns from: the newest of the targets of a kind."""

SAMPLED = 300
"""Points of each space that a pick is made among."""

GROWTH, GROWTH_TRIALS = 1.2, 200
"""A model is fitted anew when there are so many times, and so many more, trials."""

PAUSE_S = 60.0
"""Between two fits, and looks at whether another is due."""

PICKED = 10_000
"""Picks kept in memory."""

_log = logging.getLogger("tunewright.lookup")


class Measured(Protocol):
    """What a store must have to be learned from."""

    @property
    def known(self) -> Known: ...

    def examples(self, target_kind: str) -> Iterator[tuple[Candidate, Measurement]]:
        """See `Store`."""
        ...


class Predictor:
    """Picks schedules by models of one store, one for each kind of target. Threads may share it.

    A model is fitted in a thread of its own when it is first asked for, and again as trials are added. Nobody waits for
    it: until then there is no pick. A pick for a task and target stays the same until the next fit.
    """

    def __init__(self, store: Measured) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._models: dict[str, CostModel] = {}  # by kind of target
        self._fitted: dict[str, tuple[int, float]] = {}  # by kind: the newest trial then, and when that was looked at
        self._thread: threading.Thread | None = None
        self._picks: OrderedDict[tuple[str, str], Schedule | None] = OrderedDict()

    def pick(self, task: Task, target: Target, failed: Collection[str]) -> Schedule | None:
        """The point that the model takes for the fastest, not one of `failed` (keys).

        None where no model is fitted yet, or it takes the default for the fastest.
        """
        model = self._model(target.kind)
        if model is None:
            return None
        place = task.key, target.key
        with self._lock:
            if place in self._picks and ((known := self._picks[place]) is None or known.key not in failed):
                return known
        picked = _best(model, task, target, failed)
        with self._lock:
            self._picks[place] = picked
            while len(self._picks) > PICKED:
                self._picks.popitem(last=False)
        return picked

    def wait(self, timeout_s: float) -> None:
        """Until a fit that is under way has ended, or the time is over."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _model(self, kind: str) -> CostModel | None:
        with self._lock:
            newest, looked_s = self._fitted.get(kind, (0, -PAUSE_S))
            busy = self._thread is not None and self._thread.is_alive()
            if not busy and time.monotonic() - looked_s >= PAUSE_S:
                self._fitted[kind] = newest, time.monotonic()  # whatever comes of it, the next one is not begun at once
                self._thread = threading.Thread(target=self._fit, args=(kind,), name="tunewright-fit", daemon=True)
                self._thread.start()
            return self._models.get(kind)

    def _fit(self, kind: str) -> None:
        """In the thread: fit a model where enough was added."""
        before, _ = self._fitted.get(kind, (0, 0.0))
        try:
            newest = self._store.known.marks().trial_id
            model = None
            if newest >= max(GROWTH * before, before + GROWTH_TRIALS):
                model = _fitted(list(islice(self._store.examples(kind), EXAMPLES)))
                before = newest
        except StoreError as error:  # whoever looks something up is told the same
            _log.info("no cost model: %s", error)
            model = None
        with self._lock:
            self._fitted[kind] = before, time.monotonic()
            if model is not None:
                self._models[kind] = model
                self._picks.clear()


def _fitted(examples: Sequence[tuple[Candidate, Measurement]]) -> CostModel | None:
    """A model of these trials; None where they are too few."""
    from tunewright.costmodel.xgb import XGBModel

    model = XGBModel()
    model.fit(list(grouped(examples)))
    return model if model.ready else None


def _best(model: CostModel, task: Task, target: Target, failed: Collection[str]) -> Schedule | None:
    """The point with the highest score of those drawn and the default; None for the default."""
    default = default_schedule(task, target)
    best, best_score = None, -np.inf
    for space in spaces(task, target):
        rows = space.sample(SAMPLED, np.random.default_rng(0))
        if space.default == default:
            rows = np.concatenate([space.row(default)[None], rows])  # of equals the first is taken
        scores = model.score(task, target, space, rows)
        for place in np.argsort(-scores, kind="stable"):
            schedule = space.schedule(rows[place])
            if schedule.key not in failed:
                if scores[place] > best_score:
                    best, best_score = schedule, float(scores[place])
                break
    return None if best == default else best
