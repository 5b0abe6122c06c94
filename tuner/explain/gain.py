"""ModelGain and ExpectedGain: the speed-up of a job's model, from the stored job: the same in all outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tunewright.codegen.codec import from_json

from ..lookup.verdict import VendorTime
from ..noise import total_noise
from ..search.report import JobOutcome
from ..text import Interval, is_slower, ratio, ratio_within
from . import values


class GainBasis(StrEnum):
    """The times of which a gain is the ratio."""

    MODEL = "model"  # the whole model, run on default schedules and as tuned in turn
    TASKS = "tasks"  # its tasks, each timed beside its default in fresh processes
    TRIALS = (
        "trials"  # its tasks, of any of which there are only trials: what the search goes by, and nothing confirmed
    )


def task_gain_interval(
    default_ms: float | None,
    best_ms: float | None,
    default_interval_ms: Interval | None,
    best_interval_ms: Interval | None,
    is_confirmed: bool,
) -> Interval | None:
    """The interval of a task's gain; None where it is unknown or not confirmed, or the default is best."""
    if not is_confirmed or default_ms == best_ms:
        return None
    return ratio_within(default_interval_ms, best_interval_ms)


def sum_basis(tasks: Sequence[Mapping[str, Any]]) -> GainBasis:
    """The basis of what the tasks of a report come to: trials, as soon as one of them was compared with nothing."""
    return GainBasis.TRIALS if any(task.get("confirmed") is False for task in tasks) else GainBasis.TASKS


def sum_noise(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Why that can't be relied on; empty where it can."""
    return total_noise(values.word(task, "noise") for task in tasks)


@dataclass(frozen=True, slots=True)
class ModelGain:
    """Times of one run of a model, and their ratio; None where they are not known."""

    of: GainBasis
    default_ms: float | None = None
    tuned_ms: float | None = None
    default_interval_ms: Interval | None = None  # 95%, of the median; and so are the next two
    tuned_interval_ms: Interval | None = None
    speedup_interval: Interval | None = None
    outcome: JobOutcome | None = None  # None: the job has not come so far
    rejected_ms: float | None = None  # where the defaults were kept, what it takes on what was found instead
    rejected_interval: Interval | None = None  # how many times as fast as by default that is
    why_untimed: str = ""  # why the whole model was not timed
    noise: str = ""  # why the machine was too busy to rely on the times; empty where it was not
    vendor: VendorTime | None = None  # the model in a vendor's runtime, where the job timed it there
    own_outcome: JobOutcome | None = None  # where that was taken, what came of our kernels

    @property
    def is_vendor(self) -> bool:
        """Whether a vendor's runtime runs the model."""
        return self.outcome is JobOutcome.VENDOR

    @property
    def vendor_text(self) -> str:
        """The time in the vendor's runtime and what came of it, in words; empty where the job asked for none."""
        return "" if self.vendor is None else self.vendor.conclusion(self.is_vendor)

    @property
    def speedup(self) -> float | None:
        """The speed-up over default schedules."""
        return ratio(self.default_ms, self.tuned_ms)

    @property
    def is_kept(self) -> bool:
        """Whether our kernels keep the model's defaults, as no schedules made it faster."""
        return (self.own_outcome or self.outcome) is JobOutcome.DEFAULTS_KEPT

    @property
    def is_slower(self) -> bool:
        """Whether what was found but is not used is slower for certain, not just no faster."""
        return is_slower(self.rejected_interval)

    @property
    def rejected_speedup(self) -> float | None:
        """The speed-up on the schedules that were found but are not used."""
        return ratio(self.default_ms, self.rejected_ms)

    @staticmethod
    def of_job(progress: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> ModelGain:
        """The gain of a job from its newest progress and its result, as far as it has them."""
        if result is None:  # until it ends all that is told of its tasks together goes by trials
            return ModelGain(
                GainBasis.TRIALS,
                values.number(progress, "default_ms"),
                values.number(progress, "tuned_ms"),
                noise=values.word(progress, "noise"),
            )
        default_ms, tuned_ms = values.number(result, "default_ms"), values.number(result, "tuned_ms")
        is_timed = default_ms is not None and tuned_ms is not None
        tasks = [] if is_timed else values.entries(result, "tasks")
        return ModelGain(
            GainBasis.MODEL if is_timed else sum_basis(tasks),
            default_ms if is_timed else values.number(result, "tasks_default_ms"),
            tuned_ms if is_timed else values.number(result, "tasks_tuned_ms"),
            values.interval(result, "default_interval_ms") if is_timed else None,
            values.interval(result, "tuned_interval_ms") if is_timed else None,
            values.interval(result, "speedup_interval"),
            JobOutcome.of(values.word(result, "outcome"), bool(values.word(result, "noise"))),
            values.number(result, "rejected_ms"),
            values.interval(result, "rejected_interval"),
            values.word(result, "whole_model"),
            values.word(result, "noise") or sum_noise(tasks),
            _vendor(result),
            JobOutcome.of(values.word(result, "own_outcome"), False),
        )


def _vendor(result: Mapping[str, Any]) -> VendorTime | None:
    """The model in a vendor's runtime by a result; None where nothing is told of that."""
    with suppress(ValueError):
        return from_json(VendorTime, result.get("vendor"))
    return None


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """What more searching is expected to bring, as parts of one time: that of all tasks, or of a run of the model."""

    gain: float | None = None  # by which that becomes faster: 0.02 is 2%; None: not known
    by_task: Sequence[float | None] | None = None  # the part of it that each task should save; None: nothing is left

    @staticmethod
    def of_progress(progress: Mapping[str, Any] | None, tasks: int) -> ExpectedGain:
        """As the search tells it of so many tasks: as parts of the time of all tasks by trials."""
        parts = None if progress is None else progress.get("task_gains")
        by_task = (
            [values.number({"part": part}, "part") for part in parts]
            if isinstance(parts, list) and len(parts) == tasks
            else None
        )
        return ExpectedGain(values.number(progress, "again_gain"), by_task)

    def of_run(self, shares: Sequence[float]) -> ExpectedGain:
        """The same as parts of a run of the whole model, of which the tasks take these `shares`.

        A task that is run gives no more than its share.
        """
        tasks_share = sum(shares)
        gain, by_task = self.gain, self.by_task
        if gain is not None:
            saved = tasks_share * gain / (1.0 + gain)
            gain = saved / (1.0 - saved) if saved < 1.0 else gain
        if by_task is not None:
            by_task = [
                None if part is None else min(part * tasks_share, share or 1.0)
                for part, share in zip(by_task, shares, strict=True)
            ]
        return ExpectedGain(gain, by_task)
