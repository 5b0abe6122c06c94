"""SearchCurve: the best time of a search against trials and against seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple


class CurvePoint(NamedTuple):
    """A trial that was faster than all before."""

    trial: int  # from 1 on
    at_s: float  # since the search began
    best_s: float


@dataclass(slots=True)
class SearchCurve:
    """The improvements of a search, and its whole length in trials and seconds."""

    points: list[CurvePoint] = field(default_factory=list)
    trials: int = 0
    seconds: float = 0.0

    def add(self, at_s: float, time_s: float | None) -> bool:
        """Add a trial, a failed one without a time. Returns whether it is the fastest so far."""
        self.trials += 1
        self.seconds = max(self.seconds, at_s)
        if time_s is None or time_s >= self.best_s:
            return False
        self.points.append(CurvePoint(self.trials, at_s, time_s))
        return True

    @property
    def best_s(self) -> float:
        """Infinite where nothing has worked."""
        return self.points[-1].best_s if self.points else inf

    def best_after(self, trials: float = inf, seconds: float = inf) -> CurvePoint | None:
        """The fastest trial within so many trials and seconds."""
        within = [point for point in self.points if point.trial <= trials and point.at_s <= seconds]
        return within[-1] if within else None

    @property
    def trials_a_second(self) -> float | None:
        """None where no time has passed."""
        return self.trials / self.seconds if self.seconds else None

    @property
    def running_trials_a_second(self) -> float | None:
        """The rate after the first trial that worked, without the start of the search. None before another trial."""
        if not self.points or self.seconds <= self.points[0].at_s:
            return None
        first = self.points[0]
        return (self.trials - first.trial) / (self.seconds - first.at_s)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        return {"trials": self.trials, "seconds": self.seconds, "points": [list(point) for point in self.points]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SearchCurve:
        """The inverse of `to_json`."""
        return SearchCurve([CurvePoint(*point) for point in data["points"]], data["trials"], data["seconds"])
