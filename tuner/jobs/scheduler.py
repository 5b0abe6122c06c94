"""TaskScheduler: which task of a model gets the next trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..models.assembly import Assembly, Run, TaskChain

WINDOW = 24
"""Trials over which recent progress is looked at."""

HOPE = 0.8
"""Weight of what could still be gained against what was gained lately; Ansor's 1 - alpha."""

SMALLEST, LARGEST = 4, 32
"""Trials in a batch after the first one: fewer waste what a batch costs, more make the next choice on old knowledge."""

LEAST_GAP = 0.02
"""The part of a time that may always be saved: the floor is an estimate, and a task may come below it."""

PROSPECT = 16
"""Trials after which the time of a task may still come down to half, after three times as many to three quarters."""


@dataclass(slots=True)
class TaskProgress:
    """What is known of one task."""

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

    First every task gets one trial, so that each has a default time however small the budget is: those that the model
    runs apart before those that may stand for them, the heaviest first. From then on the next batch goes to the task
    with the largest `uses * gain`, where the gain of a trial mixes the slope of the task's best time with the gap to
    its floor, spread over as many trials as it had already (Ansor, OSDI '20, section 6, with the floor in place of
    zero). Ties go to the first task.

    A task that the model would not use as things stand gains what the model would gain if that task, and what must
    come with it, came down as far as they may after so many trials (`PROSPECT`). So what is clearly slower than what
    stands in its place gets no more trials.

    `times_s` are the outcomes of each task so far, in the order in which they were measured.
    """

    def __init__(
        self, assembly: Assembly, floors_s: Sequence[float], times_s: Sequence[Sequence[float]] | None = None
    ) -> None:
        self._assembly = assembly
        self._tasks = [TaskProgress(floor_s) for _, floor_s in zip(assembly.occurrences, floors_s, strict=True)]
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
            gains_s = self.expected_gains_s()
            index = max(within_reach, key=lambda index: gains_s[index])
            size = min(max(remaining_trials // (2 * len(open_tasks)), SMALLEST), LARGEST, remaining_trials)
        self._tasks[index].under_way += size
        return index, size

    def expected_gains_s(self) -> list[float]:
        """Seconds that one more trial of each task is expected to take off the whole model."""
        known_s = [task.best_s[-1] if task.succeeded else None for task in self._tasks]
        uses = self._assembly.uses(known_s)
        gains_s = [uses[index] * self._gain_s(task) for index, task in enumerate(self._tasks)]
        hoped_s = [self._hoped_s(task) for task in self._tasks]
        for chain, count in self._assembly.chains:
            for index, saved_s in _prospects(chain, known_s, hoped_s).items():
                gains_s[index] += count * HOPE * saved_s / max(self._tasks[index].spent, 1)
        # Trials that fail teach little: a task where most do waits longer, but its turn comes.
        return [
            gain_s * (task.succeeded + 1.0) / (task.trials + 2.0)
            for task, gain_s in zip(self._tasks, gains_s, strict=True)
        ]

    def _gain_s(self, task: TaskProgress) -> float:
        """Seconds that one more trial is expected to take off a task's time."""
        best_s = self._best_s(task)
        window = min(WINDOW, task.trials - 1)
        before_s = task.best_s[-1 - window] if window > 0 else np.inf
        slope_s = (before_s - best_s) / window if np.isfinite(before_s) else 0.0
        gap_s = max(best_s - self._reach() * task.floor_s, LEAST_GAP * best_s)
        return (1.0 - HOPE) * min(slope_s, gap_s) + HOPE * gap_s / max(task.spent, 1)

    def _hoped_s(self, task: TaskProgress) -> float:
        """What a task's time may come down to."""
        best_s = self._best_s(task)
        return min(max(self._reach() * task.floor_s, best_s * task.spent / (task.spent + PROSPECT)), best_s)

    def _reach(self) -> float:
        """How near to its floor the best of the tasks came: no other is expected to come nearer.

        This takes out what the floors have wrong about the machine as a whole.
        """
        return max(min(self._ratios(), default=1.0), 1.0)

    def _ratios(self) -> list[float]:
        return [task.best_s[-1] / task.floor_s for task in self._tasks if task.succeeded]

    def _weight(self, index: int) -> tuple[bool, float]:
        is_alternative = index in self._assembly.alternatives
        return not is_alternative, self._assembly.occurrences[index] * self._tasks[index].floor_s

    def _best_s(self, task: TaskProgress) -> float:
        """The best time; while none is known, what the other tasks' distance from their floors suggests."""
        if task.succeeded:
            return task.best_s[-1]
        ratios = self._ratios()
        return task.floor_s * (float(np.median(ratios)) if ratios else 1.0)


def _prospects(chain: TaskChain, known_s: Sequence[float | None], hoped_s: Sequence[float]) -> dict[int, float]:
    """Seconds that tasks of a chain would save where they are not used, by task, if they came down to what is hoped.

    What is used is taken at its time, what must come with the task at what is hoped of it.
    """
    used = set(chain.chosen(known_s))
    unused: dict[int, set[Run]] = {}
    for part in chain.parts:
        if part not in used:
            unused.setdefault(part.task, set()).add(part)

    def cost_s(part: Run) -> float:
        known = known_s[part.task]
        return known if part in used and known is not None else hoped_s[part.task]

    least_s, _ = chain.cheapest(cost_s)
    saved = {}
    for task, parts in unused.items():
        without_s, _ = chain.cheapest(lambda part, parts=parts: np.inf if part in parts else cost_s(part))  # type: ignore[misc]
        if without_s > least_s:
            saved[task] = without_s - least_s
    return saved
