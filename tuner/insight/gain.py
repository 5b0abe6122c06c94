"""Gain: how much faster a job has made its model, out of what is kept of the job: the same wherever it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..jobs.report import Interval, Outcome
from ..text import ratio
from . import told


class GainOf(StrEnum):
    """What the times are of that a gain is the ratio of."""

    MODEL = "model"  # the whole model, run on default schedules and as tuned in turn
    TASKS = "tasks"  # its tasks, each timed beside its default in fresh processes
    TRIALS = "trials"  # trials: what the search goes by, and nothing has confirmed


@dataclass(frozen=True, slots=True)
class Gain:
    """Times of one run of a model, and their ratio; None where they are not known."""

    of: GainOf
    default_ms: float | None = None
    tuned_ms: float | None = None
    default_interval_ms: Interval | None = None  # 95%, of the median; and so are the next two
    tuned_interval_ms: Interval | None = None
    speedup_interval: Interval | None = None
    outcome: Outcome | None = None  # None: the job has not come so far
    rejected_ms: float | None = None  # where the defaults were kept, what it takes on what was found instead
    rejected_interval: Interval | None = None  # how many times as fast as by default that is
    why_untimed: str = ""  # why the whole model was not timed
    noise: str = ""  # why the machine was too busy to rely on the times; empty where it was not

    @property
    def speedup(self) -> float | None:
        """How many times as fast as by default the model is."""
        return ratio(self.default_ms, self.tuned_ms)

    @property
    def is_kept(self) -> bool:
        """Whether the model stays on its defaults, as nothing found makes it faster."""
        return self.outcome is Outcome.DEFAULTS_KEPT

    @property
    def rejected(self) -> float | None:
        """How many times as fast as by default the model is on what was found, and is not used."""
        return ratio(self.default_ms, self.rejected_ms)

    @staticmethod
    def told(progress: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> Gain:
        """That of a job by its newest progress and its result, as far as it has them."""
        if result is None:
            return Gain(GainOf.TRIALS, told.number(progress, "default_ms"), told.number(progress, "tuned_ms"))
        outcome = told.word(result, "outcome")
        default_ms, tuned_ms = told.number(result, "default_ms"), told.number(result, "tuned_ms")
        is_timed = default_ms is not None and tuned_ms is not None
        return Gain(
            GainOf.MODEL if is_timed else GainOf.TASKS,
            default_ms if is_timed else told.number(result, "tasks_default_ms"),
            tuned_ms if is_timed else told.number(result, "tasks_tuned_ms"),
            told.interval(result, "default_interval_ms") if is_timed else None,
            told.interval(result, "tuned_interval_ms") if is_timed else None,
            told.interval(result, "speedup_interval"),
            Outcome(outcome) if outcome in {one.value for one in Outcome} else None,
            told.number(result, "rejected_ms"),
            told.interval(result, "rejected_interval"),
            told.word(result, "whole_model"),
            told.word(result, "noise"),
        )
