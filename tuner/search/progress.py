"""Progress: the state of a running job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from tunewright.db.job import SearchBudget
from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule

from ..models.assembly import Assembly, total_s
from ..noise import total_noise
from ..text import ratio
from ..units import in_ms
from .scheduling.outlook import MINUTE_S, Forecast
from .stage import AFTER_SEARCH, JobStage
from .task_state import TaskState

DIGITS = 4
"""Digits of the expected gain of a task: the least is 0.01% of all tasks."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a job after a trial."""

    stage: JobStage
    trials: int
    budget: SearchBudget
    elapsed_s: float  # in this process
    tasks: Sequence[TaskState]
    assembly: Assembly = field(default_factory=Assembly)  # of the tasks, by their number
    last: tuple[TaskState, Schedule, Measurement] | None = None
    spent_s: float = 0.0  # of searching, over all processes
    fallback: Mapping[str, int] = field(default_factory=dict)  # op -> nodes without a kernel: told once, before the job
    forecast: Forecast | None = None  # None where it is not known what to expect
    lasts_s: float = inf  # until the search is expected to end by other bounds than time; infinite: not known
    task_trials: Sequence[int] = ()  # of the job, in the order of `tasks`
    holder: str = ""  # who else has the job, while it waits; empty where that is not known
    confirmed: int = 0  # of the tasks, those whose default and best were timed side by side
    to_confirm: int = 0  # of how many that is so in the end: others have nothing to compare; 0: not known yet

    @property
    def speedup(self) -> float | None:
        """The speed-up over the defaults; None while not known."""
        return ratio(self.default_s, self.tuned_s)

    @property
    def default_s(self) -> float | None:
        """Seconds of all tasks of a run on their defaults, as is told of each; None while one was not timed."""
        return total_s(self.assembly.separate_uses, [task.times.default_s for task in self.tasks])

    @property
    def tuned_s(self) -> float | None:
        """Seconds of the chosen tasks of a run on their best schedules."""
        return total_s(self.chosen, [task.times.best_s for task in self.tasks])

    @property
    def noise(self) -> str:
        """Why the machine was too busy to rely on these sums; empty where it was not."""
        return total_noise(task.times.noise for task in self.tasks)

    @property
    def is_tried(self) -> bool:
        """Whether a trial is in these sums: what is not confirmed (yet)."""
        return not all(task.times.is_confirmed for task in self.tasks)

    @property
    def is_default_tried(self) -> bool:
        """Whether a trial is in the sum of the defaults, which may be confirmed beside a best that is a trial."""
        uses = zip(self.assembly.separate_uses, self.tasks, strict=True)
        return any(count and not task.times.is_default_confirmed for count, task in uses)

    @property
    def chosen(self) -> list[int]:
        """The uses of each task by the times so far."""
        return self.assembly.uses([task.known_s for task in self.tasks])

    @property
    def left_s(self) -> float | None:
        """Expected seconds until the search ends: by trials, by time or as too little more is expected.

        None while not known, and once it is over.
        """
        if self.stage in AFTER_SEARCH:
            return None
        left_s = min(self.budget.seconds_left(self.spent_s), self.lasts_s)
        return max(left_s, 0.0) if isfinite(left_s) else None

    @property
    def remaining_gain(self) -> float | None:
        """The expected gain of all tasks together from the rest of the search: 0.02 is 2%. None: not known."""
        if self.forecast is None or not self._is_searching:
            return None
        trials_left = self.budget.trials_left(self.trials)
        left_s = min(self.budget.seconds_left(self.spent_s), self.forecast.lasts_s(trials_left, self.budget.until))
        return self.forecast.speedup(max(left_s, 0.0), trials_left)

    @property
    def again_s(self) -> float:
        """Seconds of searching so far, at least a minute."""
        return max(self.spent_s, MINUTE_S)

    @property
    def again_gain(self) -> float | None:
        """The expected gain of all tasks together from searching for as long again, whatever the budget."""
        return None if self.forecast is None else self.forecast.speedup(self.again_s)

    @property
    def task_gains(self) -> list[float | None] | None:
        """The part of the time of all tasks that each is expected to save then; None where it is exhausted."""
        if self.forecast is None:
            return None
        gains = self.forecast.by_task(self.again_s)
        return [None if (gain := gains.get(task)) is None else round(gain, DIGITS) for task in range(len(self.tasks))]

    @property
    def _is_searching(self) -> bool:
        return self.stage is JobStage.SEARCHING

    def to_json(self) -> dict[str, Any]:
        """Plain data for clients."""
        return {
            "stage": self.stage.value,
            "trials": self.trials,
            "most_trials": self.budget.trials,
            "spent_s": self.spent_s,
            "left_s": self.left_s,
            "speedup": self.speedup,
            "default_ms": in_ms(self.default_s),
            "tuned_ms": in_ms(self.tuned_s),
            "noise": self.noise,
            "is_tried": self.is_tried,
            "is_default_tried": self.is_default_tried,
            "remaining_gain": self.remaining_gain,
            "again_gain": self.again_gain,
            "chosen": self.chosen,
            "task_gains": self.task_gains,
            "confirmed": self.confirmed,
            "to_confirm": self.to_confirm,
        }


Watch = Callable[[Progress], None]
