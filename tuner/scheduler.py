"""TaskScheduler: which task of a model gets the next trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

WINDOW = 24
"""Trials over which recent progress is looked at."""

HOPE = 0.8
"""Weight of what could still be gained against what was gained lately; Ansor's 1 - alpha."""

SMALLEST, LARGEST = 4, 32
"""Trials in a batch after the first one: fewer waste what a batch costs, more make the next choice on old knowledge."""

LEAST_GAP = 0.02
"""The part of a time that may always be saved: the floor is an estimate, and a task may come below it."""


@dataclass(slots=True)
class TaskProgress:
    """What is known of one task."""

    occurrences: int  # how often the model runs it
    floor_s: float  # a time it can hardly go below
    best_s: list[float] = field(default_factory=list)  # after each trial; inf until one succeeds
    under_way: int = 0  # trials handed out and not told yet
    succeeded: int = 0
    exhausted: bool = False

    @property
    def trials(self) -> int:
        return len(self.best_s)

    @property
    def spent(self) -> int:
        """Trials done or under way."""
        return self.trials + self.under_way

    def add(self, time_s: float) -> None:
        """The outcome of one more trial; inf if it failed."""
        self.succeeded += bool(np.isfinite(time_s))
        self.best_s.append(min(time_s, self.best_s[-1]) if self.best_s else time_s)


class TaskScheduler:
    """Spends trials where the model as a whole is expected to gain most by them.

    First every task gets one trial, the heaviest first, so that each has a default time however small the budget is.
    From then on the next batch goes to the task with the largest `occurrences * gain`, where the gain of a trial
    mixes the slope of the task's best time with the gap to its floor, spread over as many trials as it had already
    (Ansor, OSDI '20, section 6, with the floor in place of zero). Ties go to the first task.

    `times_s` are the outcomes of each task so far, in the order in which they were measured.
    """

    def __init__(
        self, occurrences: Sequence[int], floors_s: Sequence[float], times_s: Sequence[Sequence[float]] | None = None
    ) -> None:
        self._tasks = [TaskProgress(n, floor_s) for n, floor_s in zip(occurrences, floors_s, strict=True)]
        for index, outcomes in enumerate(times_s or ()):
            self.add(index, outcomes)

    def tell(self, index: int, times_s: Sequence[float]) -> None:
        """The outcomes of trials of a task that were handed out; inf where one failed."""
        self.drop(index, len(times_s))
        self.add(index, times_s)

    def add(self, index: int, times_s: Sequence[float]) -> None:
        """The outcomes of trials that others made."""
        for time_s in times_s:
            self._tasks[index].add(time_s)

    def drop(self, index: int, trials: int) -> None:
        """Trials that were handed out are under way no more."""
        task = self._tasks[index]
        task.under_way = max(task.under_way - trials, 0)

    def exhaust(self, index: int) -> None:
        """The spaces of a task hold nothing more to try."""
        self._tasks[index].exhausted = True

    def next_batch(self, remaining_trials: int, passed_over: Collection[int] = ()) -> tuple[int, int] | None:
        """The task to turn to and how many trials it gets; None if the trials or all tasks are spent.

        They count as under way until they are told, so that batches may overlap. Tasks `passed_over` can't be turned
        to now; None also where there are no others.
        """
        open_tasks = [index for index, task in enumerate(self._tasks) if not task.exhausted]
        within_reach = [index for index in open_tasks if index not in passed_over]
        if remaining_trials <= 0 or not within_reach:
            return None
        unseen = [index for index in within_reach if not self._tasks[index].spent]
        if unseen:
            index, size = max(unseen, key=self._weight), 1
        else:
            index = max(within_reach, key=self.expected_gain_s)
            size = min(max(remaining_trials // (2 * len(open_tasks)), SMALLEST), LARGEST, remaining_trials)
        self._tasks[index].under_way += size
        return index, size

    def expected_gain_s(self, index: int) -> float:
        """Seconds that one more trial of a task is expected to take off the whole model."""
        task = self._tasks[index]
        best_s = self._best_s(task)
        window = min(WINDOW, task.trials - 1)
        before_s = task.best_s[-1 - window] if window > 0 else np.inf
        slope_s = (before_s - best_s) / window if np.isfinite(before_s) else 0.0
        gap_s = max(best_s - self._reach() * task.floor_s, LEAST_GAP * best_s)
        gain_s = (1.0 - HOPE) * min(slope_s, gap_s) + HOPE * gap_s / max(task.spent, 1)
        # Trials that fail teach little: a task where most do waits longer, but its turn comes.
        chance = (task.succeeded + 1.0) / (task.trials + 2.0)
        return task.occurrences * chance * gain_s

    def _reach(self) -> float:
        """How near to its floor the best of the tasks came: no other is expected to come nearer.

        This takes out what the floors have wrong about the machine as a whole.
        """
        return max(min(self._ratios(), default=1.0), 1.0)

    def _ratios(self) -> list[float]:
        return [task.best_s[-1] / task.floor_s for task in self._tasks if task.succeeded]

    def _weight(self, index: int) -> float:
        task = self._tasks[index]
        return task.occurrences * task.floor_s

    def _best_s(self, task: TaskProgress) -> float:
        """The best time; while none is known, what the other tasks' distance from their floors suggests."""
        if task.succeeded:
            return task.best_s[-1]
        ratios = self._ratios()
        return task.floor_s * (float(np.median(ratios)) if ratios else 1.0)
