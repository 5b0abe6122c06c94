"""RetentionPolicy: for how long a database keeps what nobody may need any more, and what was removed. Light to import.

What is measured is not among it, unless that is asked for: neither jobs, nor what was found, nor the log.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

LEAST_BEST = 8
"""Fewest trials of a task that are kept: lookups consider as many (`Catalog.fastest`)."""

MOST_BEST = 1_000_000
"""Most of them that a policy tells."""

LEARNED_TRIALS = 10_000
"""The newest trials of a kind of target, which a cost model is judged on: none of them is removed."""

MOST_PROGRESS = 200
"""Moments of progress, and of its machine, that are kept of a job that finished long ago: as many as a curve shows."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What is kept how long, in days; None: for ever.

    Nothing that an unfinished job may need is removed, however old it is.
    """

    events_days: float | None = 30.0  # all progress of a job, after its end; from then on `MOST_PROGRESS` moments of it
    deliveries_days: float | None = 30.0  # what was told to webhooks, or could not be
    models_days: float | None = None  # that were sent, after their last use
    best: int | None = None  # working trials of a task on a target that stay, `LEAST_BEST` or more; None: all of them
    trials_days: float | None = 90.0  # the others of a job, after its end

    def __post_init__(self) -> None:
        if self.best is not None and self.best < LEAST_BEST:
            raise ValueError(f"{self.best} trials of a task; at least {LEAST_BEST} must stay, which lookups consider")
        if self.best is not None and self.best > MOST_BEST:
            raise ValueError(f"{self.best:,} trials of a task; the number must be at most {MOST_BEST:,}")
        days = (self.events_days, self.deliveries_days, self.models_days, self.trials_days)
        if any(number is not None and not 0.0 <= number <= MOST_DAYS for number in days):
            raise ValueError(f"a number of days must be from 0 to {MOST_DAYS:,}")


MOST_DAYS = 36_500
"""Longest time that a policy tells: a century."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were removed, or would be."""

    events: int = 0  # of progress
    trials: int = 0
    models: int = 0
    model_bytes: int = 0  # of those models
    deliveries: int = 0
    sessions: int = 0  # of browsers, and links, that are over
    tuners: int = 0  # that were silent for long
    log_entries: int = 0  # of namespaces that were deleted
    environments: int = 0  # of the log, that no entry has

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Pruned)))

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))
