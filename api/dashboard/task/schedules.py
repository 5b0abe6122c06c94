"""Parts of views about tasks and schedules, shared by pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Path
from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.best import Best
from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.db.trial import TrialDetail, TrialLine, TrialPage
from tunewright.graph.task import Task, Tensor
from tunewright.graph.tolerance import tolerance
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, holds
from tunewright.tuner.explain import values
from tunewright.tuner.explain.meanings import knob_words
from tunewright.tuner.explain.nest import to_json
from tunewright.tuner.explain.texts import parts_of
from tunewright.tuner.lookup.ladder import usable_records
from tunewright.tuner.noise import noise_of_line, noise_of_measurement
from tunewright.tuner.text import shorten

from ...http.descriptions import Descriptions, Failure
from ...http.schemas.base import FEW_HAVE_NONE, SHA256, Answer, Digest
from ...http.service import find_target, find_task
from ..views import IS_IMPORTED, MOST_KNOBS, KnobValues, Text

if TYPE_CHECKING:
    from tunewright.tuner.explain.describer import ScheduleDescription

TaskInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of the task.")]

LONGEST_SCHEDULE = 400
"""Longest text of a schedule on one line, in characters."""


class TensorShown(Answer):
    """What a task reads or writes."""

    name: Text
    dtype: Text
    extents: list[int]
    is_constant: bool = Field(description="Known when a model is compiled, such as weights.")


class TaskHead(Answer):
    """What a task computes."""

    key: Digest
    op: Text = Field(description="What it is, for people.")
    shape: Text = Field(description="The shapes of what goes in and comes out, for people.")
    flops: int = Field(description="Floating-point operations of one run.")
    traffic_bytes: int = Field(description="Bytes that one run must read and write at least.")
    inputs: list[TensorShown]
    outputs: list[TensorShown]

    @staticmethod
    def of(task: Task) -> TaskHead:
        """A task as views show it."""
        return TaskHead.show(task, inputs=list(map(_tensor, task.inputs)), outputs=list(map(_tensor, task.outputs)))


def _tensor(tensor: Tensor) -> TensorShown:
    return TensorShown(
        name=tensor.name, dtype=tensor.dtype.value, extents=list(tensor.shape), is_constant=tensor.constant
    )


class ScheduleTold(Answer):
    """A schedule as it is replayed."""

    key: Digest
    sketch: Text
    version: int
    values: KnobValues = Field(description="Knob values.")

    @staticmethod
    def of(schedule: Schedule) -> ScheduleTold:
        """A schedule as views show it."""
        return ScheduleTold.show(schedule, values=dict(schedule.values))

    @property
    def text(self) -> str:
        """On one line, cut where it is long."""
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return shorten(f"{self.sketch}.{self.version}({values})", LONGEST_SCHEDULE)


NO_TRIAL = SimpleNamespace(
    samples=None, max_rel_err=None, error="", build_ms=None, job=None, ordinal=None, created_at=None, is_usable=True
)
"""What is said of the trial of a schedule that there is no trial of."""


class TrialBrief(Answer):
    """A trial in a table, or the time of a schedule that was compared with others."""

    schedule: ScheduleTold
    status: Status
    median_ms: float | None
    interval_ms: tuple[float, float] | None = Field(description=FEW_HAVE_NONE)
    samples: int | None = Field(description="How many it is of; null where that is not told.")
    max_rel_err: float | None = Field(description="Largest error against the reference; null where there is no number.")
    error: Text
    build_ms: float | None
    job: int | None = Field(description="The job that measured it; null: none did, as of what was imported.")
    ordinal: int | None = Field(description="0, 1, 2, ... within the job.")
    created_at: datetime | None
    is_confirmed: bool = Field(description="Whether the time is that of a comparison in fresh processes, made here.")
    is_imported: bool = IS_IMPORTED
    noise: Text = Field(description="Why the machine was too busy to rely on the time; empty where it was not.")
    is_usable: bool = Field(
        description="Whether this version has the schedule. One of another version's sketches is kept, and never used."
    )

    @property
    def is_of_trial(self) -> bool:
        """Whether the time is of a trial here that nothing confirmed."""
        return not self.is_confirmed and not self.is_imported


class KnobShown(Answer):
    """A knob of a schedule, and its value in others of the same sketch."""

    name: Text
    words: Text = Field(description="What it is, for people; empty where the name says it.")
    value: int
    default_value: int | None = Field(description="Of the default schedule; null where that has no such knob.")
    best_value: int | None = Field(description="Of the best schedule known; null where that has no such knob.")


def knobs(schedule: Schedule, default: Schedule | None, best: Schedule | None) -> list[KnobShown]:
    """The knobs of a schedule, beside those of the default and of the best where these are of the same sketch."""
    others = [
        dict(other.values) if other is not None and _sketch(other) == _sketch(schedule) else {}
        for other in (default, best)
    ]
    return [
        KnobShown(
            name=name,
            words=knob_words(name),
            value=value,
            default_value=others[0].get(name),
            best_value=others[1].get(name),
        )
        for name, value in schedule.values[:MOST_KNOBS]
    ]


def _sketch(schedule: Schedule) -> tuple[str, int]:
    return schedule.sketch, schedule.version


class FormShown(Answer):
    """A schedule in words and as loops."""

    words: list[Text] = Field(description="What it does, in sentences.")
    parts: list[dict[str, Any]] = Field(
        description="Its loops, as a tree: each is a loop (`kind`, `var`, `extent`, `parts`) or a step (`text`)."
    )
    is_pending: bool = Field(description="Whether this is still being worked out.")
    why: Text = Field(description="Why it can't be; empty where it can.")

    @staticmethod
    def of(form: ScheduleDescription | Failure | None) -> FormShown:
        """The form as far as it is known."""
        match form:
            case None:
                return FormShown(words=[], parts=[], is_pending=True, why="")
            case Failure(why):
                return FormShown(words=[], parts=[], is_pending=False, why=why)
        return FormShown(words=list(form.words), parts=list(map(to_json, form.nest)), is_pending=False, why="")


class TextPart(StrEnum):
    """What a schedule can be read as: of a processor the first three, of a GPU the first and the last two."""

    IR = "ir"
    LLVM = "llvm"
    ASSEMBLY = "assembly"
    CUDA = "cuda"
    PTX = "ptx"

    @property
    def words(self) -> str:
        """What it is called."""
        return {"ir": "Loop IR", "llvm": "LLVM", "assembly": "Assembly", "cuda": "CUDA C", "ptx": "PTX"}[self.value]


def text_parts(target: Target) -> list[TextPart]:
    """What schedules for a target can be read as."""
    return [TextPart(part) for part in parts_of(target)]


class ToleranceShown(Answer):
    """How far off an output may be, relative to its largest magnitude."""

    output: Text
    dtype: Text
    tolerance: float = Field(description="0: it must be equal.")


def tolerances(task: Task) -> list[ToleranceShown]:
    """The tolerances that results of candidates are checked by."""
    return [
        ToleranceShown(output=tensor.name, dtype=tensor.dtype.value, tolerance=tolerance(task, tensor.dtype))
        for tensor in task.outputs
    ]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a database knows of a task on a target: the default and the best schedule, and the trials of both."""

    task: Task
    target: Target
    default: Schedule | None  # None: no sketch applies
    default_trial: TrialDetail | None
    best: Best | None  # what a session would use
    best_trial: TrialDetail | None
    snapshot_id: int  # of the newest snapshot; 0: there is none
    peak_gflops: float | None  # what the job that it is looked at for measured, or the most that any job did

    @staticmethod
    def load(store: Store, task_key: str, target_key: str, job: Job | None = None) -> Standing:
        """By the keys, for a job or for none. Raises Problem for keys that are unknown, StoreError."""
        task, target = find_task(store, task_key), find_target(store, target_key)
        try:
            default = default_schedule(task, target)
        except Illegal:
            default = None
        best = usable_records(store.catalog, {task.key: task}, target).get(task.key)
        trial = store.trials.get(task.key, target.key, best.schedule.key) if best else None
        snapshots = store.snapshots.list(target.kind, limit=1)
        return Standing(
            task,
            target,
            default,
            store.trials.get(task.key, target.key, default.key) if default else None,
            best,
            trial,
            snapshots[0].id if snapshots else 0,
            _peak_gflops(job, target) or store.jobs.peak_gflops(target.key),
        )

    @property
    def best_schedule(self) -> Schedule | None:
        """What a session would use; None where nothing is known to work."""
        return self.best.schedule if self.best else None

    def mark(self, newest: TrialPage) -> tuple[object, ...]:
        """A value that changes with what cost models are asked about; `newest` is the newest trial of all."""
        newest_id = newest.trials[0].id if newest.trials else 0
        counts = tuple(sorted(newest.counts.items()))  # taking back changes that alone
        return newest_id, counts, self.snapshot_id, self.best_schedule

    def brief(self, trial: TrialDetail | TrialLine | None) -> TrialBrief | None:
        """A trial of the task on the target as views show it."""
        line = trial.line if isinstance(trial, TrialDetail) else trial
        if line is None:
            return None
        return TrialBrief.show(
            line,
            schedule=ScheduleTold.of(line.schedule),
            max_rel_err=None if line.max_rel_err == inf else line.max_rel_err,
            job=line.job_id,
            is_confirmed=False,
            noise=noise_of_line(line),
            is_usable=holds(self.task, self.target, line.schedule),
        )

    async def form(
        self, descriptions: Descriptions, schedule: Schedule | None, besides: Schedule | None = None
    ) -> FormShown | None:
        """A schedule in words and as loops; None without one, and where it is the one that this is shown besides."""
        if schedule is None or schedule == besides:
            return None
        return FormShown.of(await descriptions.form(self.task, self.target, schedule))

    @property
    def best_brief(self) -> TrialBrief | None:
        """The best schedule with the time that it was chosen for, and the data of its trial where there is one."""
        if self.best is None:
            return None
        schedule = ScheduleTold.of(self.best.schedule)
        trial, noise = self.brief(self.best_trial) or NO_TRIAL, noise_of_measurement(self.best.measurement)
        is_confirmed = self.best.is_confirmed_here
        return TrialBrief.show(
            self.best,
            trial,
            schedule=schedule,
            status=Status.OK,
            samples=self.best.samples or None,
            is_confirmed=is_confirmed,
            noise=noise,
        )


def _peak_gflops(job: Job | None, target: Target) -> float | None:
    """The peak of a target in a job's report, which the shares in it are of; None without one."""
    return values.number(job.result, "peak_gflops") if job and job.spec.target_key == target.key else None
