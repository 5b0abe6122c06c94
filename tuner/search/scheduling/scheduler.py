"""TaskScheduler: which task of a model gets the next trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, log2

import numpy as np

from ...models.assembly import Assembly, CallRange, TaskChain, total_s
from .outlook import GRID, Floats, Forecast, Promises, TaskOutlook, expected_falls, outlooks

OVERHEAD = 0.15
"""The largest part of the time that may go into what is done once a round: learning, proposing, claiming."""

SMALLEST, LARGEST = 8, 32
"""Trials of a round. Fewer leave builders idle at its end, more make the next choice on old knowledge."""

ROUND_SHARE = 16
"""A round of a task has at least one in so many of its trials: after fewer new ones the proposals would be the same.
The cost model learns again only after one in ten."""

GUESS_S = 0.05
"""Seconds of a trial, while none was timed."""

DECAY = 0.9
"""Weight of an earlier trial of a task, for each one after it: the first takes longer, as its check is made."""

TOTAL_DECAY = 0.99
"""`DECAY` for the trials of all tasks together."""

OTHERS_WEIGHT = 4.0
"""Trials that what those of other tasks take counts as much as."""


class Pace:
    """Seconds that trials of each task take, and what a round takes beside its trials."""

    def __init__(self, tasks: int) -> None:
        self._spent = [(0.0, 0.0)] * tasks  # seconds and trials, the old ones counting less
        self._all = (0.0, 0.0)
        self._round_s = 0.0

    def note(self, task: int, trials: int, seconds: float) -> None:
        """Record that trials of a task took so many seconds."""
        if trials:
            self._spent[task] = _accumulate(self._spent[task], trials, seconds, DECAY)
            self._all = _accumulate(self._all, trials, seconds, TOTAL_DECAY)

    def note_round(self, seconds: float) -> None:
        """Record the seconds of a round beside its trials."""
        self._round_s = seconds if not self._round_s else DECAY * self._round_s + (1 - DECAY) * seconds

    @property
    def mean_s(self) -> float:
        """Seconds of a trial of any task."""
        seconds, trials = self._all
        return (seconds + GUESS_S) / (trials + 1.0)

    def trial_s(self, task: int) -> float:
        """Seconds that one trial of the task takes."""
        seconds, trials = self._spent[task]
        return (seconds + OTHERS_WEIGHT * self.mean_s) / (trials + OTHERS_WEIGHT)

    def cost_s(self, task: int) -> float:
        """Seconds that one more trial of the task takes in all, with its part of what a round takes."""
        return self.trial_s(task) + self._round_s / self.batch

    @property
    def batch(self) -> int:
        """Trials of a round so that little of the time goes into what is done once in it."""
        trials = self._round_s * (1 / OVERHEAD - 1) / max(self.mean_s, 1e-6)
        return min(max(ceil(trials), SMALLEST), LARGEST)

    def batch_after(self, trials: int) -> int:
        """`batch` for a task that had so many trials."""
        return max(self.batch, min(trials // ROUND_SHARE, LARGEST))


def _accumulate(before: tuple[float, float], trials: int, seconds: float, decay: float) -> tuple[float, float]:
    return decay**trials * before[0] + seconds, decay**trials * before[1] + trials


SMALLEST_LATER = 4
"""Trials in a batch after the first one of a task, where there are few for many tasks."""

LEAST_GAP = 0.02
"""The part of a time that may always be saved: the floor is an estimate."""

PROSPECT = 16
"""Trials after which the time of a task may still come down to half, after three times as many to three quarters."""

CHANCE = 0.1
"""Chance that an unused task comes down as far as it may."""


@dataclass(slots=True)
class TaskProgress:
    """The trials of one task."""

    floor_s: float  # a time it can hardly go below
    family: str
    best_s: list[float] = field(default_factory=list)  # after each trial; inf until one succeeds
    succeeded: int = 0
    exhausted: bool = False
    promises: Promises = field(default_factory=Promises)

    @property
    def trials(self) -> int:
        return len(self.best_s)

    def add(self, time_s: float) -> None:
        """The outcome of one more trial; inf if it failed."""
        self.succeeded += bool(np.isfinite(time_s))
        self.best_s.append(min(time_s, self.best_s[-1]) if self.best_s else time_s)


class TaskScheduler:
    """Spends trials where the model as a whole is expected to gain most by them, for the time that they take.

    First every task gets one trial, so that each has a default time however small the budget is: those that the model
    runs apart before those that may stand for them, the heaviest first. From then on the next batch goes to the task
    with the largest expected gain a second, `uses * time * what the outlook says / time of the trials`; see `outlook`.
    It expects little of tasks that are far from their floor but did not come nearer, nor did others like them. Ties go
    to the first task.

    A task that the model would not use as things stand has a small chance to gain what the model would gain if that
    task, and what must come with it, came down as far as they may after so many trials (`PROSPECT`). So what is clearly
    slower than what stands in its place gets no more trials.

    `times_s` are the outcomes of each task so far, in the order in which they were measured. `families` say which tasks
    are similar; by default none are. How long trials take is to be noted in `pace`.
    """

    def __init__(
        self,
        assembly: Assembly,
        floors_s: Sequence[float],
        times_s: Sequence[Sequence[float]] | None = None,
        families: Sequence[str] | None = None,
    ) -> None:
        self._assembly = assembly
        names = families or [str(index) for index in range(len(floors_s))]
        self._tasks = [TaskProgress(*floor_and_family) for floor_and_family in zip(floors_s, names, strict=True)]
        self.pace = Pace(len(self._tasks))
        for index, outcomes in enumerate(times_s or ()):
            self.add(index, outcomes)

    def add(self, index: int, times_s: Sequence[float]) -> None:
        """The outcomes of more trials of a task, whoever made them; inf where one failed."""
        for time_s in times_s:
            self._tasks[index].add(time_s)

    def promise(self, index: int, fall: float | None) -> None:
        """Set the predicted fall of a task's best proposals below its best trial: log2, None where unknown."""
        self._tasks[index].promises.renew(fall, self._tasks[index].best_s)

    def exhaust(self, index: int) -> None:
        """The spaces of a task hold nothing more to try."""
        self._tasks[index].exhausted = True

    def next_batch(self, remaining_trials: float, excluded: Collection[int] = ()) -> tuple[int, int] | None:
        """The task to turn to and how many trials it gets; None if the trials or all tasks are spent.

        `remaining_trials` are infinite where nothing bounds them.
        `excluded` tasks can't have trials now; None also where there are no others.
        """
        open_tasks = [index for index, task in enumerate(self._tasks) if not task.exhausted]
        reachable = [index for index in open_tasks if index not in excluded]
        if remaining_trials <= 0 or not reachable:
            return None
        untried = [index for index in reachable if not self._tasks[index].trials]
        if untried:
            index, size = max(untried, key=self._weight), 1
        else:
            share = min(max(remaining_trials / (2 * len(open_tasks)), SMALLEST_LATER), remaining_trials)
            size = int(min(self.pace.batch, share))
            gains_s = self.expected_gains_s(np.array([float(size)]))[:, 0]
            index = max(reachable, key=lambda index: float(gains_s[index]) / self.pace.cost_s(index))
            size = int(min(self.pace.batch_after(self._tasks[index].trials), share))
        return index, size

    def outlooks(self) -> list[TaskOutlook]:
        """The outlook of each task."""
        return outlooks(
            [task.best_s for task in self._tasks],
            [task.family for task in self._tasks],
            [_limit(task) for task in self._tasks],
            expected_falls([task.promises for task in self._tasks]),
        )

    def expected_gains_s(self, more: Floats) -> Floats:
        """Seconds [tasks, more] that so many more trials of each task are expected to take off the whole model."""
        known_s = [task.best_s[-1] if task.succeeded else None for task in self._tasks]
        uses = self._assembly.uses(known_s)
        gains_s = np.zeros((len(self._tasks), len(more)))
        for index, (task, outlook) in enumerate(zip(self._tasks, self.outlooks(), strict=True)):
            best_s = uses[index] * self._best_s(task)
            gains_s[index] = best_s * (outlook.saving(more) if task.succeeded else _chance_to_work(task.trials, more))
        reachable_s = [self._reachable_s(task) for task in self._tasks]
        for chain, count in self._assembly.chains:
            for index, saved_s in _prospects(chain, known_s, reachable_s).items():
                gains_s[index] += count * saved_s * CHANCE * more / (more + max(self._tasks[index].trials, 1))
        return gains_s

    def forecast(self) -> Forecast | None:
        """The expected gain of the search from here on: none where nothing is left to try.

        None while a task that the model needs was not tried.
        """
        separate_uses = self._assembly.separate_uses
        reachable = [index for index, task in enumerate(self._tasks) if not task.exhausted]
        if any(separate_uses[index] and not self._tasks[index].trials for index in reachable):
            return None
        known_s = [task.best_s[-1] if task.succeeded else None for task in self._tasks]
        times_s = [self._best_s(task) for task in self._tasks]
        return Forecast.of(
            total_s(self._assembly.uses(known_s), times_s) or 0.0,
            self.expected_gains_s(GRID)[reachable],
            np.array([self.pace.cost_s(index) for index in reachable]),
            reachable,
        )

    def _reachable_s(self, task: TaskProgress) -> float:
        """The time that a task may come down to."""
        best_s = self._best_s(task)
        return min(max(self._reach() * task.floor_s, best_s * task.trials / (task.trials + PROSPECT)), best_s)

    def _reach(self) -> float:
        """The least ratio of a task's time to its floor: no other task is expected to come nearer.

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


def _limit(task: TaskProgress) -> float:
    """The furthest that the best time can fall, in log2; infinite where it is below the floor, which is wrong then."""
    if not task.succeeded or task.best_s[-1] < task.floor_s:
        return inf
    return max(log2(task.best_s[-1] / task.floor_s), -log2(1.0 - LEAST_GAP))


def _chance_to_work(failed: int, more: Floats) -> Floats:
    """The chance that any of so many more trials works after all so far failed.

    That is Laplace's rule of succession, where it is twice as likely as not, beforehand, that nothing works at all.
    """
    return np.asarray(more / (more + failed + 1.0) / (2.0 * failed + 3.0))


def _prospects(chain: TaskChain, known_s: Sequence[float | None], reachable_s: Sequence[float]) -> dict[int, float]:
    """Seconds that tasks of a chain would save where they are not used, by task, if they came down to what is hoped.

    What is used is taken at its time, what must come with the task at what is hoped of it.
    """
    used = set(chain.fastest(known_s))
    unused: dict[int, set[CallRange]] = {}
    for part in chain.parts:
        if part not in used:
            unused.setdefault(part.task, set()).add(part)

    def cost_s(part: CallRange) -> float:
        time_s = known_s[part.task]
        return time_s if part in used and time_s is not None else reachable_s[part.task]

    least_s, _ = chain.cheapest(cost_s)
    savings_s = {}
    for task, parts in unused.items():
        without_s, _ = chain.cheapest(lambda part, parts=parts: np.inf if part in parts else cost_s(part))  # type: ignore[misc]
        if without_s > least_s:
            savings_s[task] = without_s - least_s
    return savings_s
