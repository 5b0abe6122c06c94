"""Importance of knobs: which parts of the differences between the times of trials they explain, each by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST_TRIALS = 50
"""With fewer trials that worked nothing is said."""

MATTERS = 0.02
"""A knob matters if it explains more than this part for certain."""

GROUPS = 6
"""Groups of neighbouring values at most that a knob is looked at by."""

RESAMPLES = 40
"""How often the trials are drawn anew for the intervals."""

WITHIN = 1.96
"""Deviations to each end of a 95% interval."""

PSEUDO_TRIALS = 1.0
"""Trials without any effect that each group is taken to have besides its own, so that few of them say little."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KnobShare:
    """The part of the variance of log time that one knob explains by itself."""

    name: str
    share: float  # 0..1
    low: float  # the 95% interval of that
    high: float
    best: tuple[float, float]  # the least and the largest value of the group of values with the best times
    factor: float  # how many times as long those of the worst group take as those of the best, all else equal

    @property
    def matters(self) -> bool:
        """Whether it explains more than hardly anything, for certain."""
        return self.low > MATTERS


@dataclass(frozen=True, slots=True)
class Importance:
    """What the knobs explain of the times of so many trials."""

    trials: int
    knobs: tuple[KnobShare, ...]  # those with the largest shares first; only knobs of more than one value

    @property
    def explained(self) -> float:
        """What all explain, each by itself. The rest is due to combinations of them, and to noise."""
        return min(sum(knob.share for knob in self.knobs), 1.0)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The values of a knob in groups: which trial is in which, and from where to where each reaches."""

    numbers: NDArray[np.int64]  # [trials]
    reaches: tuple[tuple[float, float], ...]


def importance(columns: Mapping[str, Sequence[float]], times_s: Sequence[float]) -> Importance | None:
    """The importance of knobs, by the values of each and the times of trials that worked; None where these are too few.

    A main-effects analysis (functional ANOVA of first order): the log of the time as a sum of one effect a knob, fitted
    to one half of the trials, where knobs that went together share what they explain; an effect counts by its
    covariance with the times of the other half, so one that only fits noise counts as nothing. The halves are every
    other trial: their order must say nothing of their times. Intervals are by drawing the trials of each half anew.
    """
    log_times = np.log2(np.asarray(times_s, np.float64))
    groups = {name: grouped for name, values in columns.items() if (grouped := _group(values))}
    if len(log_times) < FEWEST_TRIALS:
        return None
    if not groups or float(np.var(log_times)) < 1e-12:
        return Importance(len(log_times), ())
    ends = np.cumsum([len(knob.reaches) for knob in groups.values()])
    starts = ends - [len(knob.reaches) for knob in groups.values()]
    inputs = np.concatenate(
        [np.eye(len(knob.reaches))[knob.numbers] for knob in groups.values()], axis=1, dtype=np.float64
    )
    halves = [(inputs[n::2], log_times[n::2]) for n in (0, 1)]
    shares = _shares(halves, [np.ones(len(half[1])) for half in halves], starts)
    rng = np.random.default_rng(0)
    drawn = [_shares(halves, [_draw(rng, len(half[1])) for half in halves], starts) for _ in range(RESAMPLES)]
    spread = WITHIN * np.std(drawn, axis=0)
    effects = _fit(inputs, log_times, np.ones(len(log_times)))
    found = []
    for place, (name, knob) in enumerate(groups.items()):
        own = effects[starts[place] : ends[place]]
        share = float(shares[place])
        low, high = (float(np.clip(share + sign * spread[place], 0.0, 1.0)) for sign in (-1, 1))
        reach = knob.reaches[int(np.argmin(own))]
        factor = float(2.0 ** (own.max() - own.min()))
        found.append(KnobShare(name, min(max(share, 0.0), 1.0), low, high, reach, factor))
    return Importance(len(log_times), tuple(sorted(found, key=lambda knob: (-knob.share, knob.name))))


def _group(values: Sequence[float]) -> _Groups | None:
    """The values in groups of neighbours with about as many trials each; None for a single value."""
    column = np.asarray(values, np.float64)
    distinct = np.unique(column)
    if len(distinct) < 2:
        return None
    if len(distinct) > GROUPS:
        edges = np.unique(np.quantile(column, np.arange(1, GROUPS) / GROUPS, method="higher"))
        numbers = np.searchsorted(edges, column, side="left")
    else:
        numbers = np.searchsorted(distinct, column)
    _, numbers = np.unique(numbers, return_inverse=True)
    reaches = tuple(
        (float(column[numbers == n].min()), float(column[numbers == n].max())) for n in range(int(numbers.max()) + 1)
    )
    return _Groups(numbers, reaches) if len(reaches) > 1 else None


def _draw(rng: np.random.Generator, count: int) -> Floats:
    """How often each of so many trials is drawn, when as many are."""
    return np.bincount(rng.integers(0, count, count), minlength=count).astype(np.float64)


def _fit(inputs: Floats, log_times: Floats, weights: Floats) -> Floats:
    """The effect of each group on the log of the time."""
    total = weights.sum()
    centred = inputs - weights @ inputs / total
    residuals = log_times - weights @ log_times / total
    weighted = centred * weights[:, None]
    gram = weighted.T @ centred + PSEUDO_TRIALS * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(gram, weighted.T @ residuals), np.float64)


def _shares(halves: Sequence[tuple[Floats, Floats]], weights: Sequence[Floats], starts: NDArray[np.int64]) -> Floats:
    """The share of each knob, by the effects that either half says and the times of the other."""
    sums = np.zeros(len(starts))
    for n in (0, 1):
        effects = _fit(*halves[n], weights[n])
        inputs, log_times = halves[1 - n]
        told = weights[1 - n] / weights[1 - n].sum()
        residuals = log_times - told @ log_times
        variance = told @ residuals**2
        if variance > 0:
            of_groups = ((told * residuals) @ inputs) * effects
            sums += np.add.reduceat(of_groups, starts) / variance
    return sums / 2
