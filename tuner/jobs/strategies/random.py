"""Random: points in no order. The control that every other strategy has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule

from .problem import Problem


class Random:
    """Asks for the defaults, then for random points; the cost model is not looked at."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._history = problem, problem.history

    def ask(self, n: int) -> list[Schedule]:
        history, rng = self._history, self._problem.rng()
        schedules = history.take(history.defaults()[:n])
        return schedules + history.take(history.draw(n - len(schedules), rng))

    def tell(self, measured: Sequence[tuple[Schedule, Measurement]]) -> None:
        for schedule, measurement in measured:
            self._history.tell(schedule, measurement)

    def promise(self) -> float | None:
        return None
