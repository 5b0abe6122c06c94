"""What the first page says before its list: what all jobs came to, and what became slower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import exp, log

from pydantic import Field

from tunewright.db.overview import JobFigures, NamedEvent
from tunewright.db.store import Store
from tunewright.tuner.explain import values
from tunewright.tuner.explain.regression import regression_origin
from tunewright.tuner.search.report import JobOutcome

from ..http.schemas.base import Answer
from .views import LongText, TargetName, Text

MOST_REGRESSIONS = 5
"""Regressions on the page: the newest ones."""


class OverallGain(Answer):
    """What all jobs that succeeded made of their models: of each, its sizes and its target the newest job counts."""

    models: int = Field(description="Models that were timed as a whole, on a machine that was quiet.")
    speedup: float | None = Field(
        description="Geometric mean of how many times as fast as by default they are; null without any."
    )
    faster: int = Field(description="Of them, those that became faster beyond the interval of the gain.")
    saved_ms: float = Field(description="What one run of each takes less, all together.")
    untimed: int = Field(description="The others: not timed as a whole, or on a busy machine.")

    @staticmethod
    def of(figures: Iterable[JobFigures]) -> OverallGain:
        """The gain of these jobs, the newest first."""
        newest: dict[tuple[str, str, str], tuple[float, float] | None] = {}
        faster: dict[tuple[str, str, str], bool] = {}
        for job in figures:
            key = job.model_sha256, job.target_key, job.dims
            if job.model_sha256 and newest.get(key) is None:
                newest[key], faster[key] = _times(job), _is_faster(job)
        counted = {key: times for key, times in newest.items() if times is not None}
        timed = counted.values()
        mean = exp(sum(log(before / after) for before, after in timed) / len(timed)) if timed else None
        return OverallGain(
            models=len(timed),
            speedup=mean,
            faster=sum(faster[key] for key in counted),
            saved_ms=sum(before - after for before, after in timed),
            untimed=len(newest) - len(timed),
        )


class RegressionLine(Answer):
    """A task that was confirmed to be slower than it was before."""

    job: int
    label: Text = Field(description="Of the job, for people.")
    task: Text = Field(description="Its key.")
    op: Text
    target: TargetName
    before_ms: float | None
    now_ms: float | None
    origin: LongText = Field(description="Which versions built it, instead of which; empty where these are the same.")
    at: datetime

    @property
    def ratio(self) -> float | None:
        """How many times as long as before it takes."""
        return self.now_ms / self.before_ms if self.now_ms and self.before_ms else None


def overall_gain(store: Store) -> OverallGain:
    """What all jobs came to. Raises StoreError."""
    return store.overview.of_figures(OverallGain.of)


def newest_regressions(store: Store, targets: Mapping[str, str]) -> list[RegressionLine]:
    """The newest regressions; `targets` are names by key. Raises StoreError."""
    return [_line(found, targets) for found in store.overview.regressions(MOST_REGRESSIONS)]


def _line(found: NamedEvent, targets: Mapping[str, str]) -> RegressionLine:
    event = found.event
    return RegressionLine(
        job=event.job_id,
        label=found.label,
        task=values.word(event.data, "task_key"),
        op=values.word(event.data, "op"),
        target=TargetName.known(found.target_key, targets),
        before_ms=values.number(event.data, "before_ms"),
        now_ms=values.number(event.data, "now_ms"),
        origin=regression_origin(event.data),
        at=event.created_at,
    )


def _is_faster(job: JobFigures) -> bool:
    """Whether a model that was timed became faster: by the outcome, and of a version that told none by its times."""
    if outcome := job.own_outcome or job.outcome:
        return outcome == JobOutcome.FASTER
    times = _times(job)
    return times is not None and times[1] < times[0]


def _times(job: JobFigures) -> tuple[float, float] | None:
    """The times of a model by default and as tuned, in ms; None where they can't be relied on."""
    if job.noise:
        return None
    try:
        before, after = float(job.default_ms), float(job.tuned_ms)
    except ValueError:
        return None
    return (before, after) if 0.0 < before < 1e12 and 0.0 < after < 1e12 else None
