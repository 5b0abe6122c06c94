"""Times of several programs on one GPU, taken in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

Sample = Callable[[], list[float]]
"""Runs a program some times: seconds of each run."""

ROUNDS = 15


def side_by_side(samples: Mapping[str, Sample], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of a run of each. They take turns, each round beginning with another one."""
    names = list(samples)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        samples[name]()  # what comes first once
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            taken[name] += samples[name]()
    return {name: median(times_s) for name, times_s in taken.items()}
