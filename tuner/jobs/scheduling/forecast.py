"""Forecast: what a search is expected to gain for the whole model, by how long it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from .outlook import Floats

GRID = np.array([0.0, *(2.0**n for n in range(2, 21))])
"""Further trials of a task at which its expected gain is looked at; between them it is a line."""

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected gain over time, if trials go where they bring most. All three rise together, from zero on."""

    model_s: float  # one run of the model as it stands: all its tasks
    seconds: Floats  # of searching from now on
    trials: Floats
    gains_s: Floats  # off a run of the model
    tasks: tuple[int, ...]  # that have something left to try, by their numbers
    turns: NDArray[np.int64]  # which of them takes each step

    @staticmethod
    def of(model_s: float, gains_s: Floats, trial_s: Floats, tasks: Sequence[int]) -> Forecast:
        """`gains_s` [tasks, GRID] come off a run of the model, by further trials; one takes `trial_s` [tasks]."""
        trials = np.broadcast_to(np.diff(GRID), (len(trial_s), len(GRID) - 1))
        steps = np.diff(gains_s, axis=1).reshape(-1)
        seconds = (trials * trial_s[:, None]).reshape(-1)
        order = np.argsort(-steps / seconds, kind="stable")
        seconds, number, gained = (
            np.concatenate([[0.0], np.cumsum(part[order])]) for part in (seconds, trials.reshape(-1), steps)
        )
        return Forecast(model_s, seconds, number, gained, tuple(tasks), order // trials.shape[1])

    def speedup(self, seconds: float, trials: float = inf, start_s: float = 0.0) -> float:
        """How much faster the model is expected to become in so many more seconds and trials: 0.02 is 2%.

        `start_s` seconds from now, if not at once.
        """
        before_s, after_s = (self.model_s - self._gain_s(when, trials) for when in (start_s, start_s + seconds))
        return before_s / after_s - 1.0 if after_s > 0 else 0.0

    def by_task(self, seconds: float, trials: float = inf) -> dict[int, float]:
        """What part of a run, as it is now, each task is expected to take off it in so many more seconds and trials.

        By number, of the tasks that have something left to try.
        """
        taken_s = np.clip(self._gain_s(seconds, trials) - self.gains_s[:-1], 0.0, np.diff(self.gains_s))
        by_task_s = np.bincount(self.turns, taken_s, len(self.tasks))
        run_s = self.model_s or 1.0  # of a model that takes no time nothing comes off
        return {task: gain_s / run_s for task, gain_s in zip(self.tasks, by_task_s.tolist(), strict=True)}

    def is_below(self, until: float) -> bool:
        """Whether another minute is expected to make the model faster by less than that."""
        return self.speedup(MINUTE_S) < until

    def lasts_s(self, trials: float, until: float | None) -> float:
        """Seconds until so many trials are spent, or another minute brings less than `until`; infinite if never."""
        ends_s = float(np.interp(trials, self.trials, self.seconds)) if trials <= self.trials[-1] else inf
        if until is None:
            return ends_s
        later_s = np.interp(self.seconds + MINUTE_S, self.seconds, self.gains_s)
        below = (self.model_s - self.gains_s) < (1.0 + until) * (self.model_s - later_s)
        return min(ends_s, float(self.seconds[np.argmax(below)])) if below.any() else ends_s

    def _gain_s(self, seconds: float, trials: float) -> float:
        by_time = float(np.interp(seconds, self.seconds, self.gains_s))
        return min(by_time, float(np.interp(trials, self.trials, self.gains_s))) if isfinite(trials) else by_time
