"""TaskOutlook: the expected gain of more trials of a task.

Falls of a time are in log2: 1 is half the time, 0.1 about 7% less. What is left to gain shrinks with the trials done
as 1 / sqrt(trials), so each doubling of the trials brings less than the one before. `LEFT`, `POWER` and `WEIGHT` were
fitted to 5,900 recorded trials of 134 tasks: the mean falls over doublings from 1, 2, 4, ... 64 trials on were 0.029,
0.034, 0.013, 0.010, 0.010, 0.020 and 0.011.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, log2
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...text import counted

Floats = NDArray[np.float64]

LEFT = 0.12
"""Remaining fall after the first trial of a task, in the mean over tasks."""

POWER = 0.5
"""The remaining fall goes as trials ** -POWER."""

WEIGHT = 4.0
"""Weight of the prior, in doublings of the trials of a task, or in similar tasks."""

TRUST = 0.8
"""The part of a promise that is kept: it is the highest of many predictions, hence mostly too high. Of 1,000 trials of
resnet50 and mobilenet_v2 that began with a base model, 0.3 and 0.5 expected less than came, and 1 was no better."""

DOUBT = 0.1
"""Promises, in log2, after which what came of them counts as much as `TRUST`."""

SOON = 4.0
"""Trials in which half of what is kept of a promise comes true."""


@dataclass(frozen=True, slots=True)
class FallEvidence:
    """The remaining fall after the first trial of a task, as its later trials show it; or the sum over many tasks."""

    left: float = 0.0  # log2, the sum over what shows it
    weight: float = 0.0  # how much shows it: doublings of one task, or tasks

    @staticmethod
    def of(best_s: Sequence[float]) -> FallEvidence:
        """The evidence of the best times after each trial; infinite ones, before any succeeded, are none."""
        evidence, last = FallEvidence(), len(best_s)
        while last > 1 and isfinite(best_s[last // 2 - 1]):
            first = last // 2
            fall = log2(best_s[first - 1] / best_s[last - 1])
            evidence += FallEvidence(fall / (first**-POWER - last**-POWER), 1.0)
            last = first
        return evidence

    @property
    def as_task(self) -> FallEvidence:
        """This evidence as that of one task among others: of weight one, or less where it is little.

        The doublings of a task say more about it than about others.
        """
        weight = self.weight / (self.weight + WEIGHT)
        return FallEvidence(self.left * weight / max(self.weight, 1.0), weight)

    def __add__(self, other: Self) -> FallEvidence:
        return FallEvidence(self.left + other.left, self.weight + other.weight)

    def __sub__(self, other: Self) -> FallEvidence:
        return FallEvidence(self.left - other.left, self.weight - other.weight)

    def estimate(self, prior: float = LEFT) -> float:
        """The remaining fall after the first trial, by the prior and the evidence."""
        return (WEIGHT * prior + max(self.left, 0.0)) / (WEIGHT + max(self.weight, 0.0))


@dataclass(slots=True)
class Promises:
    """The predicted fall of a task's best proposals, and the record of earlier predictions."""

    fall: float = 0.0  # log2 that the best time is to fall by
    due_fall: float = 0.0  # what should have come of earlier ones by now, all together
    fulfilled_fall: float = 0.0  # what did
    trials: int = 0  # when the newest was made

    def renew(self, fall: float | None, best_s: Sequence[float]) -> None:
        """A new prediction, None where there is none, after trials with these best times."""
        more = len(best_s) - self.trials
        if more > 0 and self.trials and self.fall and isfinite(best_s[self.trials - 1]):
            self.due_fall += self.fall * more / (more + SOON)
            self.fulfilled_fall += min(log2(best_s[self.trials - 1] / best_s[-1]), self.fall)
        self.fall, self.trials = max(fall or 0.0, 0.0), len(best_s)

    def trust(self, prior: float = TRUST) -> float:
        """The part of a promise to expect, by the prior and the record of this task."""
        return min((prior * DOUBT + self.fulfilled_fall) / (DOUBT + self.due_fall), 1.0)


def expected_falls(promises: Sequence[Promises]) -> list[float]:
    """The expected fall of each task from its newest promise, with the record of all tasks, of one model, as prior."""
    everywhere = Promises(
        due_fall=sum(promise.due_fall for promise in promises),
        fulfilled_fall=sum(promise.fulfilled_fall for promise in promises),
    ).trust()
    return [promise.fall * promise.trust(everywhere) for promise in promises]


@dataclass(frozen=True, slots=True)
class TaskOutlook:
    """The expected fall of a task's time: a part soon, a part at length."""

    trials: int  # done, at least 1
    soon: float  # log2 that the best time falls by within a few trials
    later: float  # log2 that it falls by if there is no end of trials

    @staticmethod
    def of(trials: int, first_left: float, limit: float, promise: float = 0.0) -> TaskOutlook:
        """The outlook after so many trials of a task whose remaining fall after the first was `first_left`.

        `promise` is the fall that is expected of the best proposals, `limit` the furthest that it can fall.
        """
        trials = max(trials, 1)
        soon = min(promise, limit)
        return TaskOutlook(trials, soon, max(min(first_left * trials**-POWER, limit) - soon, 0.0))

    def fall(self, more: Floats) -> Floats:
        """The expected fall, in log2, after so many more trials."""
        at_length = 1.0 - (self.trials / (self.trials + more)) ** POWER
        return np.asarray(self.soon * more / (more + SOON) + self.later * at_length)

    def saving(self, more: Floats) -> Floats:
        """The part of the time that so many more trials are expected to take off."""
        return np.asarray(1.0 - 2.0 ** -self.fall(more))

    def __str__(self) -> str:
        soon, later = (100 * (1 - 2**-fall) for fall in (self.soon, self.later))
        return f"{counted(self.trials, 'trial')}, {soon:z.1f}% to gain soon, {later:z.1f}% at length"


def outlooks(
    histories: Sequence[Sequence[float]],
    families: Sequence[str],
    limits: Sequence[float],
    promises: Sequence[float],
) -> list[TaskOutlook]:
    """The outlook of each task; similar tasks share their evidence.

    `histories` are the best times after each trial; tasks of one family differ in sizes only. A task is judged by its
    own evidence, by that of its family where it has little, by that of all tasks where the family has little.
    """
    evidence = [FallEvidence.of(best_s) for best_s in histories]
    everywhere = sum((own.as_task for own in evidence), FallEvidence()).estimate()
    of_family: dict[str, FallEvidence] = {}
    for family, own in zip(families, evidence, strict=True):
        of_family[family] = of_family.get(family, FallEvidence()) + own.as_task
    return [
        TaskOutlook.of(
            len(best_s), own.estimate((of_family[family] - own.as_task).estimate(everywhere)), limit, promise
        )
        for best_s, own, family, limit, promise in zip(histories, evidence, families, limits, promises, strict=True)
    ]


GRID = np.array([0.0, *(2.0**n for n in range(2, 21))])
"""Further trials of a task at which its expected gain is computed; it is linear in between."""

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected gain over time, if trials go where they gain most. The three arrays rise together, from zero on."""

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
        """The expected gain of the model in so many more seconds and trials: 0.02 is 2%.

        `start_s` seconds from now, if not at once.
        """
        before_s, after_s = (self.model_s - self._gain_s(when, trials) for when in (start_s, start_s + seconds))
        return before_s / after_s - 1.0 if after_s > 0 else 0.0

    def by_task(self, seconds: float, trials: float = inf) -> dict[int, float]:
        """The part of a present run that each task is expected to save in so many more seconds and trials.

        By number, of the tasks that have something left to try.
        """
        taken_s = np.clip(self._gain_s(seconds, trials) - self.gains_s[:-1], 0.0, np.diff(self.gains_s))
        by_task_s = np.bincount(self.turns, taken_s, len(self.tasks))
        run_s = self.model_s or 1.0  # of a model that takes no time nothing comes off
        return {task: gain_s / run_s for task, gain_s in zip(self.tasks, by_task_s.tolist(), strict=True)}

    def is_below(self, until: float) -> bool:
        """Whether another minute is expected to gain less than `until`."""
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


def again_words(again_s: float) -> str:
    """For how long more something is expected: as long as was searched, which is told beside it, or a minute."""
    return "as long again" if again_s > MINUTE_S else "a minute more"
