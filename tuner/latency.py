"""Latency: how long calls take, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

WARM_UP = 3
MIN_ROUNDS, MAX_ROUNDS = 5, 200


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of one call among others; the order of samples is that of the rounds."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.samples_s)

    @property
    def median_ms(self) -> float:
        return 1e3 * self.median_s


def side_by_side(calls: Mapping[str, Callable[[], Any]], budget_s: float = 3.0) -> dict[str, Latency]:
    """Time several calls in turn, round after round, so that drift of the machine meets all of them alike."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    deadline = time.perf_counter() + budget_s
    rounds = 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() < deadline):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: Latency(tuple(values)) for name, values in samples.items()}
