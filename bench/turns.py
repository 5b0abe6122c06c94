"""Sampling in turn, so that drift of the machine affects all sides alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from tunewright.workers.measure.sampling import Label, interval, remove_drift, turn_orders

Sample = Callable[[], float]
"""Takes a sample, in seconds, and returns when its threads are at rest."""


def sample_in_turn(samples: Mapping[Label, Sample], rounds: int) -> dict[Label, list[float]]:
    """Samples of each label, one a round, in a rotating order, without drift (see `remove_drift`)."""
    samples_by_label: dict[Label, list[float]] = {label: [] for label in samples}
    for order in islice(turn_orders(samples), rounds):
        for label in order:
            samples_by_label[label].append(samples[label]())
    return remove_drift(samples_by_label)


def sampler(run: Callable[[], object], sample_s: float) -> Sample:
    """Samples of a run, each the mean of as many as take about `sample_s`. The first run is none of them."""
    start = time.perf_counter()
    run()
    repeats = max(1, round(sample_s / max(time.perf_counter() - start, 1e-9)))

    def sample() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - start) / repeats

    return sample


def summary(samples_s: Sequence[float]) -> dict[str, Any]:
    """Median and 95% interval of samples."""
    median_interval = interval(samples_s)
    return {
        "median_s": median_interval.median_s,
        "low_s": median_interval.low_s,
        "high_s": median_interval.high_s,
        "samples": len(samples_s),
    }
