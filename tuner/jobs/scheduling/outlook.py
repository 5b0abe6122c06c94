"""Outlook: what more trials of a task are expected to bring.

Falls of a time are in log2: 1 is half the time, 0.1 about 7% less. What is left to gain shrinks with the trials done
as 1 / sqrt(trials), so each doubling of the trials brings less than the one before. `LEFT`, `POWER` and `WEIGHT` were
fitted to 5,900 recorded trials of 134 tasks: the mean falls over doublings from 1, 2, 4, ... 64 trials on were 0.029,
0.034, 0.013, 0.010, 0.010, 0.020 and 0.011.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log2
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...text import counted

Floats = NDArray[np.float64]

LEFT = 0.12
"""What is left after the first trial of a task, in the mean over tasks."""

POWER = 0.5
"""What is left falls as trials to the minus this."""

WEIGHT = 4.0
"""Doublings of the trials of a task, or similar tasks, that what is expected beforehand counts as much as."""

TRUST = 0.8
"""The part of a promise that is kept: it is the highest of many predictions, hence mostly too high. Of 1,000 trials of
resnet50 and mobilenet_v2 that began with a base model, 0.3 and 0.5 expected less than came, and 1 was no better."""

DOUBT = 0.1
"""Promises, in log2, after which what came of them counts as much as `TRUST`."""

SOON = 4.0
"""Trials in which half of what is kept of a promise comes true."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was left after the first trial of a task, as each doubling of its trials shows it; or of many tasks."""

    left: float = 0.0  # log2, the sum over what shows it
    weight: float = 0.0  # how much shows it: doublings of one task, or tasks

    @staticmethod
    def of(best_s: Sequence[float]) -> Evidence:
        """What the best times after each trial show; infinite ones, before any succeeded, show nothing."""
        found, last = Evidence(), len(best_s)
        while last > 1 and isfinite(best_s[last // 2 - 1]):
            first = last // 2
            fall = log2(best_s[first - 1] / best_s[last - 1])
            found += Evidence(fall / (first**-POWER - last**-POWER), 1.0)
            last = first
        return found

    @property
    def as_one(self) -> Evidence:
        """What this evidence of a task is among that of other tasks: one, or less where it is little.

        The doublings of a task say more about it than about others.
        """
        weight = self.weight / (self.weight + WEIGHT)
        return Evidence(self.left * weight / max(self.weight, 1.0), weight)

    def __add__(self, other: Self) -> Evidence:
        return Evidence(self.left + other.left, self.weight + other.weight)

    def __sub__(self, other: Self) -> Evidence:
        return Evidence(self.left - other.left, self.weight - other.weight)

    def expected(self, before: float = LEFT) -> float:
        """What was left after the first trial, where that is what was expected before there was evidence."""
        return (WEIGHT * before + max(self.left, 0.0)) / (WEIGHT + max(self.weight, 0.0))


@dataclass(slots=True)
class Promises:
    """What the best proposals of a task are predicted to bring, and what came of such predictions before."""

    fall: float = 0.0  # log2 that the best time is to fall by
    due: float = 0.0  # what should have come of earlier ones by now, all together
    kept: float = 0.0  # what did
    trials: int = 0  # when the newest was made

    def renew(self, fall: float | None, best_s: Sequence[float]) -> None:
        """A new prediction, None where there is none, after trials with these best times."""
        more = len(best_s) - self.trials
        if more > 0 and self.trials and self.fall and isfinite(best_s[self.trials - 1]):
            self.due += self.fall * more / (more + SOON)
            self.kept += min(log2(best_s[self.trials - 1] / best_s[-1]), self.fall)
        self.fall, self.trials = max(fall or 0.0, 0.0), len(best_s)

    def trust(self, before: float = TRUST) -> float:
        """The part of a promise that is to be expected, where it was `before` without those of this task."""
        return min((before * DOUBT + self.kept) / (DOUBT + self.due), 1.0)


def trusted(promises: Sequence[Promises]) -> list[float]:
    """What is to be expected of the newest promise of each task: the same model makes all, so all tell of each."""
    everywhere = Promises(due=sum(one.due for one in promises), kept=sum(one.kept for one in promises)).trust()
    return [one.fall * one.trust(everywhere) for one in promises]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What may still come of a task: part of it soon, part at length."""

    trials: int  # done, at least 1
    soon: float  # log2 that the best time falls by within a few trials
    later: float  # log2 that it falls by if there is no end of trials

    @staticmethod
    def of(trials: int, left: float, limit: float, promise: float = 0.0) -> Outlook:
        """The outlook after so many trials of a task of which `left` was left after the first one.

        `promise` is the fall that is expected of the best proposals, `limit` the furthest that it can fall.
        """
        trials = max(trials, 1)
        soon = min(promise, limit)
        return Outlook(trials, soon, max(min(left * trials**-POWER, limit) - soon, 0.0))

    def fall(self, more: Floats) -> Floats:
        """The expected fall, in log2, after so many more trials."""
        at_length = 1.0 - (self.trials / (self.trials + more)) ** POWER
        return np.asarray(self.soon * more / (more + SOON) + self.later * at_length)

    def saved(self, more: Floats) -> Floats:
        """The part of the time that so many more trials are expected to take off."""
        return np.asarray(1.0 - 2.0 ** -self.fall(more))

    def __str__(self) -> str:
        soon, later = (100 * (1 - 2**-fall) for fall in (self.soon, self.later))
        return f"{counted(self.trials, 'trial')}, {soon:.1f}% to gain soon, {later:.1f}% at length"


def outlooks(
    histories: Sequence[Sequence[float]],
    families: Sequence[str],
    limits: Sequence[float],
    promises: Sequence[float],
) -> list[Outlook]:
    """The outlook of each task, of all that is known of them: similar tasks expect what came of each other.

    `histories` are the best times after each trial; tasks of one family differ in sizes only. A task is judged by its
    own evidence, by that of its family where it has little, by that of all tasks where the family has little.
    """
    shown = [Evidence.of(best_s) for best_s in histories]
    everywhere = sum((own.as_one for own in shown), Evidence()).expected()
    alike: dict[str, Evidence] = {}
    for family, own in zip(families, shown, strict=True):
        alike[family] = alike.get(family, Evidence()) + own.as_one
    return [
        Outlook.of(len(best_s), own.expected((alike[family] - own.as_one).expected(everywhere)), limit, promise)
        for best_s, own, family, limit, promise in zip(histories, shown, families, limits, promises, strict=True)
    ]
