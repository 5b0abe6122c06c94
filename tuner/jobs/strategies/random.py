"""Random: points in no order. The control that every other strategy has to beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.model import CostModel
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.space import Space

from .history import History


class Random:
    """Asks for the defaults, then for random points; the cost model is not looked at."""

    def __init__(
        self,
        task: Task,
        target: Target,
        spaces: Sequence[Space],
        model: CostModel,
        seed: int,
        records: Iterable[Record] = (),
    ) -> None:
        self._history = History(spaces, task.key, target.key, records)
        self._seed = (seed, int(task.key[:16], 16))

    def ask(self, n: int) -> list[Schedule]:
        history = self._history
        rng = np.random.default_rng([*self._seed, history.measured, history.pending])
        schedules = history.take(history.defaults()[:n])
        return schedules + history.take(history.draw(n - len(schedules), rng))

    def tell(self, measured: Sequence[tuple[Schedule, Measurement]]) -> None:
        for schedule, measurement in measured:
            self._history.tell(schedule, measurement)

    def promise(self) -> float | None:
        return None
