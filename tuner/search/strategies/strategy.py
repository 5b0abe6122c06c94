"""Strategy: which schedules of a task are measured next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule

from .evolutionary import Evolutionary
from .history import SearchProblem


class Random:
    """Asks for the defaults, then for random points; the cost model is not looked at."""

    def __init__(self, problem: SearchProblem) -> None:
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


class Strategy(Protocol):
    """Proposes schedules of one task on one target, and takes their measurements.

    - The first proposal is the default of the first space. Those of the others come next, in their order, or later,
      where the cost model has learned what to expect of them.
    - Proposals are distinct and legal; none has been asked for or measured before.
    - Fewer than wanted, or none, come back when a space has no more.
    - What is proposed follows from the seed, the task, the cost model and the *set* of what is measured and pending:
      not from the process, nor from the order of arrival. So a resumed search goes on as if it had never stopped.

    Every implementation passes `tests/tuner/test_strategy.py`.
    """

    def ask(self, n: int) -> list[Schedule]:
        """Up to `n` schedules to measure next."""
        ...

    def tell(self, measured: Sequence[tuple[Schedule, Measurement]]) -> None:
        """Add measurements of schedules, proposed or not, failures too. Raises Illegal for one in no space."""
        ...

    def promise(self) -> float | None:
        """The predicted gain of the best proposals over the best trial: log2 of the ratio of the times.

        None while there is nothing to tell it by. It is asked before each batch of any task, so it must cost little.
        """
        ...


StrategyFactory = Callable[[SearchProblem], Strategy]
"""Makes a strategy."""

STRATEGIES: Mapping[str, StrategyFactory] = {"evolutionary": Evolutionary, "random": Random}
"""Every strategy by its name on the command line."""
