"""History: which points of a task's spaces were asked for and measured, and how fast they were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.costmodel.model import CostModel
from tunewright.costmodel.roofline import estimate_space_s
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.space import ENUMERABLE, Rows, Space

Point = tuple[int, NDArray[np.int64]]  # number of the space, row in it


class TrialHistory:
    """The bookkeeping that every strategy needs: nothing is proposed twice, and order of arrival doesn't matter.

    Records of other tasks and targets, and of schedules that the spaces no longer hold, are passed over.
    """

    def __init__(self, spaces: Sequence[Space], task_key: str, target_key: str, records: Iterable[Record] = ()) -> None:
        self.spaces = tuple(spaces)
        self._times_s: dict[tuple[int, int], float] = {}  # (space, code) -> seconds, inf if it failed
        self._rows: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._taken: list[set[int]] = [set() for _ in self.spaces]  # codes asked for or measured
        self._pending: dict[Schedule, Point] = {}  # and not measured yet
        for record in records:
            if (record.task_key, record.target_key) == (task_key, target_key):
                try:
                    self.tell(record.schedule, record.measurement)
                except Illegal:  # written by another version of the sketch
                    continue

    @property
    def measured_count(self) -> int:
        """The number of measured points."""
        return len(self._times_s)

    @property
    def pending_count(self) -> int:
        """The number of points that were asked for and not measured yet."""
        return sum(map(len, self._taken)) - len(self._times_s)

    def locate(self, schedule: Schedule) -> Point:
        """The space that holds the schedule, and its row. Raises Illegal if none does."""
        reason: Illegal | None = None
        for number, space in enumerate(self.spaces):
            if (space.sketch, space.version) == (schedule.sketch, schedule.version):
                try:
                    return number, space.row(schedule)
                except Illegal as refusal:
                    reason = refusal
        raise reason or Illegal(f"{schedule} is of none of {[f'{s.sketch}.{s.version}' for s in self.spaces]}")

    def tell(self, schedule: Schedule, measurement: Measurement) -> None:
        """Add what came of a schedule. Of several measurements the fastest counts. Raises Illegal."""
        number, row = self._pending.pop(schedule) if schedule in self._pending else self.locate(schedule)
        code = int(self.spaces[number].codes(row[None])[0])
        time_s = measurement.median_s if measurement.status is Status.OK else None
        point = number, code
        self._times_s[point] = min(self._times_s.get(point, np.inf), np.inf if time_s is None else time_s)
        self._rows[point] = row
        self._taken[number].add(code)

    def take(self, points: Iterable[Point]) -> list[Schedule]:
        """Mark points as asked for."""
        schedules = []
        for number, row in points:
            space = self.spaces[number]
            self._taken[number].add(int(space.codes(row[None])[0]))
            schedules.append(space.schedule(row))
            self._pending[schedules[-1]] = number, row
        return schedules

    def defaults(self) -> list[Point]:
        """The default of each space, where it is still fresh."""
        points = [(number, space.row(space.default)) for number, space in enumerate(self.spaces)]
        return [(number, row) for number, row in points if len(self.fresh(number, row[None]))]

    def fresh(self, number: int, rows: Rows) -> Rows:
        """The distinct rows of a space that were neither asked for nor measured, in order of first appearance."""
        return self.spaces[number].distinct(rows[self.is_fresh(number, rows)])

    def remaining(self, number: int) -> Rows | None:
        """Every fresh point of a space; None where the space is too large to know."""
        space = self.spaces[number]
        return space.points[self.is_fresh(number, space.points)] if space.size <= ENUMERABLE else None

    def is_fresh(self, number: int, rows: Rows) -> NDArray[np.bool_]:
        """A mask of the rows of a space that were neither asked for nor measured."""
        codes = np.fromiter(self._taken[number], np.int64, len(self._taken[number]))
        return ~np.isin(self.spaces[number].codes(rows), codes)

    @property
    def best_s(self) -> float:
        """The time of the fastest point; inf while none worked."""
        return min(self._times_s.values(), default=np.inf)

    def fastest(self, count: int) -> list[Point]:
        """The fastest points measured in all spaces, fastest first; none that failed."""
        return [(point[0], self._rows[point]) for point in self._ranking()[:count]]

    def best(self, number: int, count: int) -> Rows:
        """The fastest points measured in a space, fastest first; none that failed."""
        rows = [self._rows[point] for point in self._ranking() if point[0] == number][:count]
        return np.array(rows, np.int64).reshape(len(rows), len(self.spaces[number].knobs))

    def times(self, number: int) -> tuple[Rows, NDArray[np.float64]]:
        """The points of a space that worked, and their times in seconds, fastest first."""
        points = [point for point in self._ranking() if point[0] == number]
        return self.best(number, len(points)), np.array([self._times_s[point] for point in points])

    def _ranking(self) -> list[tuple[int, int]]:
        """The points that worked, fastest first."""
        return [
            point for time_s, point in sorted((t, point) for point, t in self._times_s.items()) if np.isfinite(time_s)
        ]

    def draw(self, count: int, rng: np.random.Generator) -> list[Point]:
        """Up to `count` distinct fresh points at random, the spaces in turn; fewer where no more are found."""
        stocks = [self._stock(number, count, rng) for number in range(len(self.spaces))]
        queues = [[(number, row) for row in rows] for number, rows in enumerate(stocks)]
        turns = [point for turn in zip_longest(*queues) for point in turn if point is not None]
        return turns[:count]

    def _stock(self, number: int, count: int, rng: np.random.Generator) -> Rows:
        fresh = self.remaining(number)
        if fresh is None:
            # More are drawn than wanted, since some have been taken; in a space this large, few.
            return self.fresh(number, self.spaces[number].sample(2 * count, rng))[:count]
        return fresh[rng.permutation(len(fresh))[:count]]


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """A task to find fast schedules for, its cost model and its history."""

    task: Task
    target: Target
    model: CostModel
    seed: int
    history: TrialHistory

    @staticmethod
    def of(
        task: Task, target: Target, spaces: Sequence[Space], model: CostModel, seed: int, records: Iterable[Record] = ()
    ) -> SearchProblem:
        """`records` are what is already measured; those of other tasks and targets are passed over."""
        return SearchProblem(task, target, model, seed, TrialHistory(spaces, task.key, target.key, records))

    def rng(self) -> np.random.Generator:
        """Drawn from what is known alone, not from earlier draws: a resumed search has the same randomness."""
        known = self.history.measured_count, self.history.pending_count
        return np.random.default_rng([self.seed, int(self.task.key[:16], 16), *known])


def draft(task: Task, target: Target, space: Space, rows: Rows, count: int) -> Rows:
    """The `count` rows with the least estimated time, those first; equals in the order given."""
    return rows[np.argsort(estimate_space_s(task, target, space, rows), kind="stable")[:count]]
