"""Samples of a running time: how many runs make a sample, how many samples are enough, and what they say.

A sample is the mean of runs in a row that take long enough for the clock. Samples are taken until their median shows
which of two schedules is faster (`race`). It is the median, as interruptions only ever add time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import comb, inf
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tunewright.search_space.measurement import Measurement, Status

Label = TypeVar("Label", bound=Hashable)

MIN_SAMPLES = 5
"""Fewest samples of a schedule that is not clearly slower."""

MIN_SAMPLES_OF_LONG_RUNS = 2
"""The same where a single run is a sample."""

SAMPLES_AT_ONCE = 10
"""Samples that are taken at once while a first schedule settles."""

SAMPLE_S = 250e-6
"""Length of a sample: thousands of times the clock's resolution, and shorter than a tick of the system. Samples of
twice that length agree no better."""

GROWTH = 10
"""Factor by which the number of runs grows while the clock shows no time for them."""

MAX_RUNS = 1_000_000
"""Most runs of a sample: no run takes less than a nanosecond."""

POLISH_ROUNDS = 4
"""Rounds of the median polish, after which drifts are known to a tenth of a percent."""

MAX_SAMPLING_S = 2.0
"""Longest time for even the fewest samples."""


class Timeable(Protocol):
    """A kernel that can time itself, as `codegen.runtime.native.Program` does."""

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]: ...


class Interval(NamedTuple):
    """A median and its 95% interval, in seconds."""

    median_s: float
    low_s: float
    high_s: float

    @property
    def width(self) -> float:
        """The width as a part of the median."""
        return (self.high_s - self.low_s) / self.median_s if self.median_s else 0.0


def interval(samples_s: Sequence[float]) -> Interval:
    """Median and 95% interval of at least one sample.

    The interval lies between two of the samples, so it assumes nothing of their distribution: Conover, Practical
    Nonparametric Statistics, section 3.2. For eight samples or fewer it is their range (94% for five).
    """
    ordered = sorted(samples_s)
    count = len(ordered)
    rank = _rank(count)
    median_s = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Interval(median_s, ordered[rank], ordered[count - 1 - rank])


@lru_cache(maxsize=1024)
def _rank(count: int) -> int:
    """Number of samples to leave out at each end, so that the median is among them with a chance below 5%.

    The median is below the sample of rank k if at most k of `count` tosses of a coin show heads.
    """
    rank, tail = 0, 1
    while 40 * (tail + comb(count, rank + 1)) <= 1 << count:
        rank += 1
        tail += comb(count, rank)
    return rank


def turn_orders(labels: Iterable[Label]) -> Iterator[list[Label]]:
    """In which order samples of a round are taken, for any number of rounds: each begins with the next label."""
    order = list(labels)
    while True:
        yield order
        order = [*order[1:], *order[:1]]


def remove_drift(samples: Mapping[Label, Sequence[float]]) -> dict[Label, list[float]]:
    """Samples of several schedules that were timed in turn, as if each round had been as fast as the middle one.

    What all samples of a round have in common is the drift of the machine. Usual times and drifts are estimated by a
    median polish: Tukey, Exploratory Data Analysis, chapter 11. Of each schedule it is the drift of the others that is
    removed: of few schedules the steadiest one is the drift of most rounds, and without its own drift its samples would
    all be the same, as if its time were known without doubt. Samples of a single schedule, or of one that was alone in
    a round, are unchanged; and so are all if some took no time.
    """
    if len(samples) < 2 or not all(samples_s and min(samples_s) > 0 for samples_s in samples.values()):
        return {label: list(samples_s) for label, samples_s in samples.items()}
    logs = np.full((len(samples), max(map(len, samples.values()))), np.nan)
    for row, samples_s in zip(logs, samples.values(), strict=True):
        row[: len(samples_s)] = np.log(samples_s)
    drift = np.zeros(logs.shape[1])
    for _ in range(POLISH_ROUNDS):
        residuals = logs - drift
        drift += np.nanmedian(residuals - np.nanmedian(residuals, axis=1, keepdims=True), axis=0)
    drifts, middle = logs - np.nanmedian(logs - drift, axis=1, keepdims=True), float(np.median(drift))
    return {
        label: np.exp(logs[n] - _drift_of_others(drifts, n, middle) + middle)[: len(samples_s)].tolist()
        for n, (label, samples_s) in enumerate(samples.items())
    }


def _drift_of_others(drifts: NDArray[np.float64], row: int, unknown: float) -> NDArray[np.float64]:
    """The drift of each round by all rows but one; `unknown` where that one was alone."""
    others = np.delete(drifts, row, axis=0)
    others[:, np.isnan(others).all(axis=0)] = unknown
    return np.asarray(np.nanmedian(others, axis=0))


def repeats(program: Timeable, once_s: float) -> int:
    """Number of runs in a row that make a sample, at most `MAX_RUNS`, where the first run took `once_s`.

    If the first run was long enough, nothing is run. The first of many short runs is slower than the others, so more
    are timed until together they take half of a sample; that warms up, too. While the clock shows no time, the number
    grows step by step, as their time is unknown and may be too long. Raises RuntimeError where the clock stands still.
    """
    count = _runs(SAMPLE_S, once_s) if once_s > 0 else 1
    while once_s * count < SAMPLE_S / 2 or count > 1:
        [mean_s] = program.time(1, count)
        if mean_s * count >= SAMPLE_S / 2:
            return _runs(SAMPLE_S, mean_s)
        if count == MAX_RUNS:
            if mean_s <= 0:
                raise RuntimeError(f"{count:,} runs of a kernel in no time: the clock of this machine stands still")
            break
        count = min(max(GROWTH * count if mean_s <= 0 else _runs(SAMPLE_S, mean_s), count + 1), MAX_RUNS)
    return count


def _runs(time_s: float, once_s: float) -> int:
    """Number of runs that take `time_s`."""
    return max(1, round(min(time_s / once_s, MAX_RUNS)))


def with_samples(measurement: Measurement, samples_s: Sequence[float]) -> Measurement:
    """The measurement with median and interval of the samples; unchanged if it is of a failure.

    Raises RuntimeError where most samples took no time: such a kernel would be stored as infinitely fast.
    """
    if measurement.status is not Status.OK:
        return measurement
    median_s, low_s, high_s = interval(samples_s)
    if median_s <= 0:
        raise RuntimeError(f"most samples took no time: the clock of this machine is too coarse for {SAMPLE_S:g} s")
    return replace(measurement, samples_s=tuple(samples_s), median_s=median_s, low_s=low_s, high_s=high_s)
