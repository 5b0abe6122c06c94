"""Samples of a running time: how many runs make one, how many of them are enough, and what they say.

A sample is the mean of runs in a row that take long enough for the clock, and samples are taken until their median says
which of two is faster (`racing`). The median, as interruptions only ever add time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import comb, inf
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from tunewright.search_space.measurement import Measurement, Status

Label = TypeVar("Label", bound=Hashable)

FEWEST = 5
"""Samples of any run that is not clearly too slow."""

FEWEST_LONG = 2
"""The same of a run that is a sample by itself."""

STEP = 10
"""Samples between two looks at what they say."""

SAMPLE_S = 250e-6
"""Length of a sample: thousands of times the clock's resolution, and short between two ticks of the system. Samples of
twice that length agree no better."""

GROWTH = 10
"""Times as many runs as before are timed at once where the clock saw nothing of those."""

MOST_RUNS = 1_000_000
"""In a row: no run takes less than a nanosecond. So whatever the clock says, a fast kernel is not run for ever."""

POLISHES = 4
"""Turns by which paces are known to a tenth of a percent."""

LONGEST_S = 2.0
"""After that long not even the fewest samples are waited for."""


class Timed(Protocol):
    """What can time itself, as `codegen.runtime.native.Program` does."""

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]: ...


class Interval(NamedTuple):
    """A median and its 95% interval, in seconds."""

    median_s: float
    low_s: float
    high_s: float

    @property
    def width(self) -> float:
        """As a part of the median."""
        return (self.high_s - self.low_s) / self.median_s if self.median_s else 0.0


def interval(samples_s: Sequence[float]) -> Interval:
    """Median and interval of at least one sample.

    The interval lies between two of the samples, so it assumes nothing of how they are distributed: Conover,
    Practical Nonparametric Statistics, section 3.2. Of eight samples or fewer it is their range (94% for five).
    """
    ordered = sorted(samples_s)
    count = len(ordered)
    low = _rank(count)
    median_s = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Interval(median_s, ordered[low], ordered[count - 1 - low])


@lru_cache(maxsize=1024)
def _rank(count: int) -> int:
    """How many samples may be left out at each end: the chance that the median is among them stays below 5%.

    The median is below the sample of rank k if at most k of `count` tosses of a coin show heads.
    """
    rank, tail = 0, 1
    while 40 * (tail + comb(count, rank + 1)) <= 1 << count:
        rank += 1
        tail += comb(count, rank)
    return rank


def paced(taken: Mapping[Label, Sequence[float]]) -> dict[Label, list[float]]:
    """Samples of several, taken in turn, as if each round had been as fast as the middle one.

    What the samples of a round have in common, beside what each of the several takes, is the pace of the machine then.
    Both are found by turns, as medians: Tukey, Exploratory Data Analysis, chapter 11. Those of one alone stay what they
    are, and so do all where some took no time.
    """
    if len(taken) < 2 or not all(samples_s and min(samples_s) > 0 for samples_s in taken.values()):
        return {n: list(samples_s) for n, samples_s in taken.items()}
    logs = np.full((len(taken), max(map(len, taken.values()))), np.nan)
    for row, samples_s in zip(logs, taken.values(), strict=True):
        row[: len(samples_s)] = np.log(samples_s)
    pace = np.zeros(logs.shape[1])
    for _ in range(POLISHES):
        apart = logs - pace
        pace += np.nanmedian(apart - np.nanmedian(apart, axis=1, keepdims=True), axis=0)
    even_s = np.exp(logs - pace + np.median(pace))
    return {n: row[: len(samples_s)].tolist() for row, (n, samples_s) in zip(even_s, taken.items(), strict=True)}


def repeats(program: Timed, once_s: float) -> int:
    """How many runs in a row make a sample, `MOST_RUNS` at most, where the first one took `once_s`.

    Where that was a sample, nothing is run. The first of many short runs is slower than all others, so those are timed,
    until together they took half of a sample: that warms up, too. Raises RuntimeError where the clock stands still.
    That runs took no time says only that the clock is coarse, so their number grows step by step: the time of none is
    known, and together they may take too long.
    """
    count = _runs(SAMPLE_S, once_s) if once_s > 0 else 1
    while once_s * count < SAMPLE_S / 2 or count > 1:
        [mean_s] = program.time(1, count)
        if mean_s * count >= SAMPLE_S / 2:
            return _runs(SAMPLE_S, mean_s)
        if count == MOST_RUNS:
            if mean_s <= 0:
                raise RuntimeError(f"{count:,} runs of a kernel in no time: the clock of this machine stands still")
            break
        count = min(max(GROWTH * count if mean_s <= 0 else _runs(SAMPLE_S, mean_s), count + 1), MOST_RUNS)
    return count


def _runs(time_s: float, once_s: float) -> int:
    """How many runs take that long."""
    return max(1, round(min(time_s / once_s, MOST_RUNS)))


def timed(begun: Measurement, samples_s: Sequence[float]) -> Measurement:
    """The measurement with its figures filled in, unless it is one of a failure.

    Raises RuntimeError where most samples took no time: a kernel that seems infinitely fast would be used for good.
    """
    if begun.status is not Status.OK:
        return begun
    median_s, low_s, high_s = interval(samples_s)
    if median_s <= 0:
        raise RuntimeError(f"most samples took no time: the clock of this machine is too coarse for {SAMPLE_S:g} s")
    return replace(begun, samples_s=tuple(samples_s), median_s=median_s, low_s=low_s, high_s=high_s)
