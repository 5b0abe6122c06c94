"""Turns: what is compared gives its samples in turn, so that drift of the machine meets all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunewright.workers.sampling import Label, interval, paced

Sample = Callable[[], float]
"""Takes a sample, in seconds, and returns when its threads are at rest."""


def in_turn(samples: Mapping[Label, Sample], rounds: int) -> dict[Label, list[float]]:
    """A sample of each in every round, in an order that goes round; at an even pace, see `paced`."""
    taken: dict[Label, list[float]] = {label: [] for label in samples}
    order = list(samples)
    for _ in range(rounds):
        for label in order:
            taken[label].append(samples[label]())
        order = [*order[1:], *order[:1]]
    return paced(taken)


def summary(samples_s: Sequence[float]) -> dict[str, Any]:
    """Median and 95% interval of samples."""
    found = interval(samples_s)
    return {"median_s": found.median_s, "low_s": found.low_s, "high_s": found.high_s, "samples": len(samples_s)}
