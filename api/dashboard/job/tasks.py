"""The tasks of a job: share of a run, trials spent, expected gain; and what a run of the whole model takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Any

from pydantic import Field

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.search_space.measurement import FAILED, Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import ExpectedGain, GainBasis, ModelGain, TaskSum
from tunewright.tuner.explain.peak import why_above_peak
from tunewright.tuner.explain.upgrade import retimed_of, versions_text
from tunewright.tuner.models.assembly import Assembly, total_s
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.report import PAYOFFS, VERDICTS, JobOutcome, Payoff
from tunewright.tuner.search.view import CLEAR_GAIN
from tunewright.tuner.text import between, gain, is_slower, mark_noise, ratio, times
from tunewright.tuner.units import in_ms, in_s

from ...http.schemas.base import Answer
from ..views import Provenance, Text
from .history import JobHistory, Times


class Latency(Answer):
    """What one run of the whole model takes."""

    of: GainBasis = Field(
        description="What the times are of: runs of the whole `model`, its `tasks` timed side by side, or `trials`."
    )
    default_ms: float | None = Field(description="On default schedules; null: not known, or one of them can't be run.")
    tuned_ms: float | None = Field(description="As it is run from now on, or by the best trials so far.")
    is_default_tried: bool = Field(description="Whether a trial is in `default_ms`, which nothing has confirmed.")
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    tuned_interval_ms: tuple[float, float] | None
    speedup: float | None = Field(description="The ratio of both.")
    speedup_interval: tuple[float, float] | None
    outcome: JobOutcome | None = Field(description="What the job did for the model; null: it has not come so far.")
    rejected_ms: float | None = Field(
        description="Where the defaults were kept, what a run takes on what was found instead; null: nothing was."
    )
    rejected: float | None = Field(description="How many times as fast as by default that is.")
    rejected_interval: tuple[float, float] | None
    vendor_text: Text = Field(
        description="What a run takes in a vendor's runtime beside our kernels, which all other times are of, and what "
        "came of that; empty where the job did not ask for it."
    )
    precision_text: Text = Field(
        description="How far the job's precision moves the outputs of the model; empty where that was not measured."
    )
    own_outcome: JobOutcome | None = Field(
        description="Where that runtime was taken, what the job did for our kernels; else null."
    )
    why_not: Text = Field(description="Why a finished job has not timed the model; empty where it has.")
    default_fault: Text = Field(
        description="Why a finished job could not run it on its default schedules; empty where it could."
    )
    noise: Text = Field(description="Why the machine was too busy to rely on the times; empty where it was not.")

    @property
    def is_timed(self) -> bool:
        """Whether the model was run."""
        return self.of is GainBasis.MODEL

    @property
    def is_kept(self) -> bool:
        """Whether our kernels stay on the model's defaults."""
        return (self.own_outcome or self.outcome) is JobOutcome.DEFAULTS_KEPT

    @property
    def is_vendor(self) -> bool:
        """Whether a vendor's runtime runs the model."""
        return self.outcome is JobOutcome.VENDOR

    @property
    def is_slower(self) -> bool:
        """Whether what was found is slower for certain."""
        return is_slower(self.rejected_interval)

    @property
    def result_text(self) -> str:
        """The outcome of timing the model, for people."""
        if self.is_vendor:
            return VERDICTS[JobOutcome.VENDOR]
        if self.is_kept:
            return VERDICTS[JobOutcome.DEFAULTS_KEPT]
        speedup = times(self.speedup) if self.speedup_interval else gain(self.speedup)
        return mark_noise(speedup, self.noise) + between(self.speedup_interval)

    @staticmethod
    def of_job(job: Job) -> Latency:
        """The latency of a job as it stands."""
        model_gain = ModelGain.of_job(job.progress, job.result)
        return Latency.show(
            model_gain,
            rejected=model_gain.rejected_speedup,
            why_not=model_gain.why_untimed,
        )


class Reason(StrEnum):
    """Why a task gets the trials that it gets, or none, as far as the scheduler told."""

    UNTRIED = "untried"  # each task has one trial before any has two
    FAILING = "failing"  # all that was tried fails, or was taken back
    EXHAUSTED = "exhausted"  # its spaces hold nothing more to try
    MOST = "most"  # no task is expected to bring the model more by more trials
    SOME = "some"
    LITTLE = "little"
    UNUSED = "unused"  # as things stand the model runs others in its place
    UNKNOWN = "unknown"  # nothing was told


class TaskSort(StrEnum):
    """How the tasks are ordered, the most first."""

    TIME = "time"  # of a run that they take
    SAVED = "saved"  # of a run that was saved
    EXPECTED = "expected"
    TRIALS = "trials"
    FAILED = "failed"


class RetimedTask(Answer):
    """A task that was stale when the job timed it again."""

    default_ms: float | None = Field(description="Its default by the versions before; null: not known.")
    best_ms: float | None = Field(description="Its best by these.")
    versions: Provenance = Field(description="Of compiler, driver and Tunewright then.")
    payoff: Payoff = Field(
        description="Whether tuning still `pays` there, pays by an `other` schedule that had lost before, is `unsure` "
        "(too close to tell, or timed on too busy a machine), is no better than the `default` now, or `fails` as none "
        "of the schedules works."
    )

    @property
    def payoff_text(self) -> str:
        """What came of it, for people."""
        return PAYOFFS[self.payoff]

    @property
    def versions_text(self) -> str:
        """The versions then, for people."""
        return versions_text(self.versions)

    @staticmethod
    def of_report(entry: Mapping[str, Any]) -> RetimedTask | None:
        """That of a task in a report; None where it was not stale."""
        retimed = retimed_of(entry)
        return None if retimed is None else RetimedTask.show(retimed)


class TaskLine(Answer):
    """A task in the list of a job."""

    key: Text
    op: Text = Field(description="What it is, for people; with its shapes where others of the job are called alike.")
    uses: int = Field(description="How often the model runs it, as things stand.")
    occurrences: int = Field(description="How often it occurs in the model. Some of them may run as others instead.")
    default_ms: float | None = Field(description="Time of its default schedule; null: not known, or it fails.")
    best_ms: float | None = Field(description="The same of the best one that is known.")
    speedup: float | None
    speedup_interval: tuple[float, float] | None = Field(
        description="Within which that lies, by both intervals; null: not known, or nothing confirmed it."
    )
    is_confirmed: bool = Field(
        description="Whether these were timed side by side in fresh processes. Else the best's is of a trial."
    )
    is_default_confirmed: bool = Field(description="Whether the time of the default is of such a comparison, too.")
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    best_interval_ms: tuple[float, float] | None
    noise: Text = Field(description="Why the machine was too busy to rely on these; empty where it was not.")
    before_ms: float | None = Field(description="What it takes of a run of the model on default schedules.")
    after_ms: float | None = Field(description="What it takes of a run on the best ones.")
    before_share: float | None = Field(description="The same as parts of what the job's `parts_of` says.")
    after_share: float | None
    saved_share: float | None = Field(description="What part of all that was saved of a run was saved here.")
    trials: int = Field(description="Candidates that the job measured of it.")
    trials_share: float = Field(description="The same as a part of all that it measured.")
    failed: int = Field(description="Of them, those that failed.")
    voided: int = Field(description="Of them, those that people took back.")
    expected_share: float | None = Field(
        description="What part of that searching for as long again is expected to save here. It is one of a run of the "
        "whole model only once that was timed; before, of the time of its tasks."
    )
    reason: Reason = Field(description="Why it gets more trials, or none.")
    improved_trial: int | None = Field(description="The trial of the job, from 1 on, that made it faster last.")
    peak_share: float | None = Field(
        description="Of the most that the machine was measured to compute, what its best one does."
    )
    peak_noise: Text = Field(description="Why the machine may compute more than that; empty where it does not.")
    default_voided: bool = Field(description="Whether the default that was confirmed was taken back since.")
    best_voided: bool = Field(description="Whether the best that was confirmed was taken back since.")
    why_above_peak: Text = Field(description="Why that is more than 1; empty where it is not.")
    retimed: RetimedTask | None = Field(
        description="What it was before an upgrade; null: the job did not find it stale."
    )


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One run of the model by the times of its tasks, in the order of the job's tasks; None: not known."""

    times: Sequence[Times]  # as told of each, and what sums are of
    uses: Sequence[int]
    before_ms: Sequence[float | None]  # of each task, on default schedules
    after_ms: Sequence[float | None]  # on the best ones, or again on defaults where these were kept
    latency: Latency

    @property
    def besides_ms(self) -> tuple[float, float] | None:
        """What no task takes of a run, before and after; None where no run was timed, or none took longer."""
        default_ms, tuned_ms = self.latency.default_ms, self.latency.tuned_ms
        if not self.latency.is_timed or default_ms is None or tuned_ms is None:
            return None
        before_ms = default_ms - (total_ms(self.before_ms) or inf)
        after_ms = tuned_ms - (total_ms(self.after_ms) or inf)
        return (before_ms, after_ms) if before_ms > 0 and after_ms > 0 else None

    @property
    def default_ms(self) -> float | None:
        """The whole of it on default schedules, of what `of` says."""
        return self.latency.default_ms if self.besides_ms else total_ms(self.before_ms)

    @property
    def tuned_ms(self) -> float | None:
        """The whole of it on the best ones."""
        return self.latency.tuned_ms if self.besides_ms else total_ms(self.after_ms)

    @property
    def of(self) -> GainBasis:
        """Whether it is the run that was timed, or a sum of confirmed times or of trials."""
        if self.besides_ms:
            return GainBasis.MODEL
        return GainBasis.TASKS if all(times.is_confirmed for times in self.times) else GainBasis.TRIALS

    @property
    def is_default_tried(self) -> bool:
        """Whether a trial is in what its tasks take on default schedules."""
        parts = zip(self.before_ms, self.times, strict=True)
        return any(part_ms != 0 and not times.is_default_confirmed for part_ms, times in parts)

    @property
    def noise(self) -> str:
        """Why the times can't be relied on: the noise of the run, or of the first task that has any; empty without."""
        if self.besides_ms:
            return self.latency.noise
        return total_noise(times.noise for times in self.times)

    def expected(self, progress: Mapping[str, Any] | None) -> ExpectedGain:
        """What the search expected of going on, as parts of what `of` says."""
        expected = ExpectedGain.of_progress(progress, len(self.times))
        tuned_ms = self.latency.tuned_ms
        if not self.besides_ms or not tuned_ms:
            return expected
        return expected.of_run([(part_ms or 0.0) / tuned_ms for part_ms in self.after_ms])


def model_run(job: Job, history: JobHistory) -> ModelRun:
    """A run of the job's model, by its report or, without one, by what is known so far."""
    tasks, reported = job.spec.tasks, report_times(job.result)
    latency = Latency.of_job(job)
    times = [(reported or history.times).get(task.task_key, Times()) for task in tasks]
    assembly = _assembly(job)
    uses = _chosen(
        job,
        assembly,
        [_known_s(time, history.counts.get(key.task_key)) for time, key in zip(times, tasks, strict=True)],
    )
    return ModelRun(
        times,
        uses,
        [_part(count, time.default_ms) for count, time in zip(assembly.separate_uses, times, strict=True)],
        [
            _part(count, time.default_ms if latency.is_kept else time.best_ms)
            for count, time in zip(uses, times, strict=True)
        ],
        latency,
    )


def as_told(job: Job, history: JobHistory) -> Job:
    """The job as the events of its history have it, so that a page of it has one count and one sum.

    There may be more trials by now than it has, and better times than its progress, which is told now and then.
    """
    job = replace(job, trials=history.trials)
    if job.result is not None or job.progress is None:
        return job
    run = model_run(job, history)
    is_tried = not all(times.is_confirmed for times in run.times)
    told = TaskSum(total_ms(run.before_ms), total_ms(run.after_ms), is_tried, run.is_default_tried, run.noise)
    return replace(job, progress=job.progress | told.to_json())


def names(store: Store, task_keys: Sequence[str]) -> dict[str, str]:
    """Names of tasks by key: their ops, with shapes where several have the same. Raises StoreError."""
    ops = store.catalog.ops(task_keys)
    often = Counter(ops.values())
    shapes = store.catalog.shapes([key for key, op in ops.items() if often[op] > 1])
    return ops | {key: f"{ops[key]} {shape}" for key, shape in shapes.items() if shape}


def task_lines(
    job: Job, history: JobHistory, run: ModelRun, gains: Sequence[float | None] | None, ops: Mapping[str, str]
) -> list[TaskLine]:
    """All tasks of a job, those first that take most of a run. `gains` are still expected, `ops` say what they are."""
    savings_ms = [
        None if before_ms is None or after_ms is None else max(before_ms - after_ms, 0.0)
        for before_ms, after_ms in zip(run.before_ms, run.after_ms, strict=True)
    ]
    saved_ms = sum(saving_ms or 0.0 for saving_ms in savings_ms)
    most = max((gain for gain in gains or () if gain is not None), default=0.0)
    entries = report_entries(job.result)
    lines = []
    for n, task in enumerate(job.spec.tasks):
        key, times, counts = task.task_key, run.times[n], history.counts.get(task.task_key, {})
        trials, gain = sum(counts.values()), gains[n] if gains else None
        entry = entries.get(key, {})
        peak_share, why_above_peak = _peak(entry)
        line = TaskLine.show(
            times,
            task,
            key=key,
            op=ops.get(key, ""),
            uses=run.uses[n],
            speedup=ratio(times.default_ms, times.best_ms),
            speedup_interval=times.gain_interval,
            before_ms=run.before_ms[n],
            after_ms=run.after_ms[n],
            before_share=_share(run.before_ms[n], run.default_ms),
            after_share=_share(run.after_ms[n], run.tuned_ms),
            saved_share=_share(savings_ms[n], saved_ms),
            trials=trials,
            trials_share=trials / history.trials if history.trials else 0.0,
            failed=sum(counts.get(status, 0) for status in FAILED),
            voided=counts.get(Status.VOIDED, 0),
            expected_share=gain,
            reason=_reason(times, run.uses[n], counts, gains is not None, gain, most),
            improved_trial=history.times.get(key, Times()).improved_trial,
            peak_share=peak_share,
            peak_noise=values.word(job.result, "peak_noise"),
            default_voided=entry.get("default_voided") is True,
            best_voided=entry.get("best_voided") is True,
            why_above_peak=why_above_peak,
            retimed=RetimedTask.of_report(entry),
        )
        lines.append(line)
    return sort_tasks(lines, TaskSort.TIME)


SORTED_BY = {
    TaskSort.TIME: "after_ms",
    TaskSort.SAVED: "saved_share",
    TaskSort.EXPECTED: "expected_share",
    TaskSort.TRIALS: "trials",
    TaskSort.FAILED: "failed",
}
"""The fields that tasks are sorted by."""


def sort_tasks(tasks: Sequence[TaskLine], by: TaskSort) -> list[TaskLine]:
    """The most first, and unknown ones last; of equal ones the heavier."""

    def key(line: TaskLine) -> tuple[float, float]:
        value = getattr(line, SORTED_BY[by])
        return inf if value is None else -value, -max(line.after_ms or 0.0, line.before_ms or 0.0)

    return sorted(tasks, key=key)


# Times


def report_entries(result: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The tasks in a job's report, by key; empty without a report."""
    return {values.word(entry, "key"): entry for entry in values.entries(result, "tasks")}


def report_times(result: Mapping[str, Any] | None) -> dict[str, Times]:
    """The times in a report, by task key; empty without a report."""
    times_by_task = {key: Times.of_report(entry) for key, entry in report_entries(result).items()}
    return {
        key: times for key, times in times_by_task.items() if times.default_ms is not None or times.best_ms is not None
    }


def schedule_of(entry: Mapping[str, Any]) -> Schedule | None:
    """The schedule of a task in a report; None where it has none that can be read."""
    with suppress(KeyError, TypeError, ValueError):
        return Schedule.from_json(entry["schedule"])
    return None


def _known_s(times: Times, counts: Mapping[Status, int] | None) -> float | None:
    """The best time; infinite where all that was tried fails, None where nothing was tried."""
    if times.best_ms is not None:
        return in_s(times.best_ms)
    return inf if counts and not counts.get(Status.OK) else None


def _assembly(job: Job) -> Assembly:
    """The assembly of the model; each task apart where the settings are invalid."""
    counts = [task.occurrences for task in job.spec.tasks]
    try:
        return Assembly.of_json(counts, job.spec.settings.get("chains", []))
    except (KeyError, TypeError, ValueError):
        return Assembly(tuple(counts))


def _chosen(job: Job, assembly: Assembly, known_s: Sequence[float | None]) -> Sequence[int]:
    """How often each task is run: as the report says, or as follows from the times."""
    entries = report_entries(job.result)
    counts = [values.number(entries.get(task.task_key), "chosen") for task in job.spec.tasks]
    present = [int(count) for count in counts if count is not None]
    return present if len(present) == len(counts) and present else assembly.uses(known_s)


def _part(count: int, time_ms: float | None) -> float | None:
    """The time of a task in a run; 0 where the model doesn't run it."""
    return in_ms(total_s([count], [in_s(time_ms)]))


def total_ms(parts: Sequence[float | None]) -> float | None:
    """The sum; None where a part is not known, or there is none."""
    present = [part for part in parts if part is not None]
    return sum(present) if present and len(present) == len(parts) else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


# Why


def _peak(entry: Mapping[str, Any]) -> tuple[float | None, str]:
    """The share of the peak in the report of a task, and why it is above all of it."""
    share, schedule = values.number(entry, "fraction_of_peak"), entry.get("schedule")
    return share, why_above_peak(share, values.word(schedule if isinstance(schedule, Mapping) else None, "sketch"))


def _reason(
    times: Times, uses: int, counts: Mapping[Status, int], is_told: bool, gain: float | None, most: float
) -> Reason:
    if times.best_ms is None and not counts.get(Status.OK):
        return Reason.FAILING if counts else Reason.UNTRIED
    if not is_told:
        return Reason.UNKNOWN
    if gain is None:
        return Reason.EXHAUSTED
    if gain < CLEAR_GAIN:
        return Reason.LITTLE if uses else Reason.UNUSED
    return Reason.MOST if gain >= most else Reason.SOME
