"""Problem: what every strategy is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.model import CostModel
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Record
from tunewright.search_space.space import Space

from .history import History


@dataclass(frozen=True, slots=True)
class Problem:
    """A task of which fast schedules are looked for, and what there is to go by."""

    task: Task
    target: Target
    model: CostModel
    seed: int
    history: History

    @staticmethod
    def of(
        task: Task, target: Target, spaces: Sequence[Space], model: CostModel, seed: int, records: Iterable[Record] = ()
    ) -> Problem:
        """`records` are what is already measured; those of other tasks and targets are passed over."""
        return Problem(task, target, model, seed, History(spaces, task.key, target.key, records))

    def rng(self) -> np.random.Generator:
        """Drawn from what is known alone, not from earlier draws: a resumed search has the same randomness."""
        known = self.history.measured, self.history.pending
        return np.random.default_rng([self.seed, int(self.task.key[:16], 16), *known])
