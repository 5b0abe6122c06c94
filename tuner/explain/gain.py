"""ModelGain and ExpectedGain: the speed-up of a job's model, from the stored job: the same in all outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tunewright.codegen.codec import from_json
from tunewright.db.job import Job

from ..lookup.verdict import VendorTime
from ..noise import total_noise
from ..search.report import JobOutcome
from ..search.stage import JobStage
from ..text import Interval, is_slower, printable, ratio, ratio_within, shorten
from . import values

MOST_NAMED, LONGEST_NAME = 3, 40
"""Outputs that a sentence names at most, and letters of a name."""


class GainBasis(StrEnum):
    """The times of which a gain is the ratio."""

    MODEL = "model"  # the whole model, run on default schedules and as tuned in turn
    TASKS = "tasks"  # its tasks, each timed beside its default in fresh processes
    TRIALS = "trials"  # its tasks, of any of which there are only trials, which nothing has confirmed


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


@dataclass(frozen=True, slots=True)
class TaskSum:
    """The time of all tasks of a run, each by itself, on default schedules and on the best; None where not known."""

    default_ms: float | None
    best_ms: float | None
    is_tried: bool  # whether a trial is in it: else all of it is confirmed
    is_default_tried: bool  # whether one is in what the defaults take
    noise: str  # why the machine was too busy to rely on it; empty where it was not

    @property
    def speedup(self) -> float | None:
        """The ratio of both."""
        return ratio(self.default_ms, self.best_ms)

    @staticmethod
    def of_job(progress: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> TaskSum:
        """That of a job by its result or, before it has one, by its newest progress."""
        if result is None:
            told = progress or {}
            is_tried = told.get("is_tried") is not False  # older versions told of trials alone
            return TaskSum(
                values.number(told, "default_ms"),
                values.number(told, "tuned_ms"),
                is_tried,
                is_tried and told.get("is_default_tried") is not False,  # older ones of both alike
                values.word(told, "noise"),
            )
        tasks = values.entries(result, "tasks")
        is_tried = any(task.get("confirmed") is False for task in tasks)  # then its default's time is a trial's, too
        return TaskSum(
            values.number(result, "tasks_default_ms"),
            values.number(result, "tasks_tuned_ms"),
            is_tried,
            is_tried,
            total_noise(values.word(task, "noise") for task in tasks),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the progress of a job has it."""
        return {
            "speedup": self.speedup,
            "default_ms": self.default_ms,
            "tuned_ms": self.best_ms,
            "noise": self.noise,
            "is_tried": self.is_tried,
            "is_default_tried": self.is_default_tried,
        }

    @property
    def basis(self) -> GainBasis:
        """What its gain is of."""
        return GainBasis.TRIALS if self.is_tried else GainBasis.TASKS


def standing(job: Job) -> dict[str, Any] | None:
    """The newest progress of a job as it holds now; None where none was told.

    Trials and seconds are those that are stored: a process may end before it tells its last ones. Nothing goes on in a
    job that is over, and nothing more is to come, whatever its process was at. What its tasks come to is by its result.
    """
    if job.progress is None:
        return None
    progress = job.progress | {"trials": job.trials, "spent_s": job.spent_s}
    told = None if job.result is None else TaskSum.of_job(None, job.result)
    if told is not None and told.speedup is not None:  # older results have none
        progress |= told.to_json()
    over = {"stage": JobStage.DONE.value, "left_s": None, "remaining_gain": None}
    return progress | over if job.is_over else progress


@dataclass(frozen=True, slots=True)
class ModelGain:
    """Times of one run of a model, and their ratio; None where they are not known."""

    of: GainBasis
    default_ms: float | None = None
    tuned_ms: float | None = None
    is_default_tried: bool = False  # whether a trial is in `default_ms`
    default_interval_ms: Interval | None = None  # 95%, of the median; and so are the next two
    tuned_interval_ms: Interval | None = None
    speedup_interval: Interval | None = None
    outcome: JobOutcome | None = None  # None: the job has not come so far
    rejected_ms: float | None = None  # where the defaults were kept, what it takes on what was found instead
    rejected_interval: Interval | None = None  # how many times as fast as by default that is
    why_untimed: str = ""  # why the whole model was not timed
    default_fault: str = ""  # why it can't be run on its default schedules
    noise: str = ""  # why the machine was too busy to rely on the times; empty where it was not
    vendor: VendorTime | None = None  # the model in a vendor's runtime, where the job timed it there
    own_outcome: JobOutcome | None = None  # where that was taken, what came of our kernels
    precision: str = ""  # that the job was of, where it is known
    precision_errors: Mapping[str, float | None] = field(default_factory=dict)  # see `search.precision_error`

    @property
    def is_timed(self) -> bool:
        """Whether the whole model was run."""
        return self.of is GainBasis.MODEL

    @property
    def is_vendor(self) -> bool:
        """Whether a vendor's runtime runs the model."""
        return self.outcome is JobOutcome.VENDOR

    @property
    def vendor_text(self) -> str:
        """The time in the vendor's runtime and what came of it, in words; empty where the job asked for none."""
        return "" if self.vendor is None else self.vendor.conclusion(self.is_vendor)

    @property
    def precision_text(self) -> str:
        """How far the precision moves the outputs, in words; empty where that was not measured."""
        known = {label: error for label, error in self.precision_errors.items() if error is not None}
        rest = [_name(label) for label in self.precision_errors if label not in known]
        texts = [f"not compared: NaN or infinite at other places: {', '.join(rest[:MOST_NAMED])}"] if rest else []
        if known:
            worst = max(known, key=known.__getitem__)
            output = f"output {_name(worst)}, others less," if len(self.precision_errors) > 1 else "the output"
            by = f"by {100 * abs(known[worst]):.2g}% of its largest value on made-up inputs"
            texts.insert(0, f"precision {printable(self.precision)} moves {output} {by}")
        return "; ".join(texts)

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
        tasks = TaskSum.of_job(progress, result)
        if result is None:
            return ModelGain(tasks.basis, tasks.default_ms, tasks.best_ms, tasks.is_default_tried, noise=tasks.noise)
        default_ms, tuned_ms = values.number(result, "default_ms"), values.number(result, "tuned_ms")
        is_timed = default_ms is not None or tuned_ms is not None  # one of them, where the other can't be run
        return ModelGain(
            GainBasis.MODEL if is_timed else tasks.basis,
            default_ms if is_timed else tasks.default_ms,
            tuned_ms if is_timed else tasks.best_ms,
            not is_timed and tasks.is_default_tried,
            values.interval(result, "default_interval_ms") if is_timed else None,
            values.interval(result, "tuned_interval_ms") if is_timed else None,
            values.interval(result, "speedup_interval"),
            JobOutcome.of(values.word(result, "outcome"), bool(values.word(result, "noise"))),
            values.number(result, "rejected_ms"),
            values.interval(result, "rejected_interval"),
            values.word(result, "whole_model"),
            values.word(result, "default_fault"),
            values.word(result, "noise") or ("" if is_timed else tasks.noise),
            _vendor(result),
            JobOutcome.of(values.word(result, "own_outcome"), False),
            values.word(result, "precision"),
            _errors(result),
        )


def _errors(result: Mapping[str, Any]) -> dict[str, float | None]:
    """The errors of the precision by a result."""
    told = result.get("precision_errors")
    return {str(label): values.finite(error) for label, error in told.items()} if isinstance(told, Mapping) else {}


def _name(label: str) -> str:
    return printable(shorten(label, LONGEST_NAME))


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
    def nothing(tasks: int) -> ExpectedGain:
        """That of so many tasks of which nothing is left to try."""
        return ExpectedGain(0.0, [None] * tasks)

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
