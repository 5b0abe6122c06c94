"""What views show of tasks and of schedules, each by itself."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import Any

from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.errors import NotFound
from tunewright.db.known import Best
from tunewright.db.sql_store import SqlStore
from tunewright.db.trials import TrialLine
from tunewright.graph.task import Task, Tensor
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.insight.meanings import MEANINGS
from tunewright.tuner.insight.nest import to_json
from tunewright.tuner.text import shortened
from tunewright.tuner.units import in_ms

from ..looks import Failure, Form
from ..problems import Kind, Problem
from ..schemas import Answer, Digest
from .said import MOST_KNOBS, KnobValues, Said

LONGEST_SCHEDULE = 400
"""Characters of a schedule on one line."""


class TensorShown(Answer):
    """What a task reads or writes."""

    name: Said
    dtype: Said
    extents: list[int]
    is_constant: bool = Field(description="Known when a model is compiled, such as weights.")


class TaskHead(Answer):
    """What a task computes."""

    key: Digest
    op: Said = Field(description="What it is, for people.")
    shape: Said = Field(description="The shapes of what goes in and comes out, for people.")
    flops: int = Field(description="Floating-point operations of one run.")
    traffic_bytes: int = Field(description="Bytes that one run must read and write at least.")
    inputs: list[TensorShown]
    outputs: list[TensorShown]

    @staticmethod
    def of(task: Task) -> TaskHead:
        """A task as views show it."""
        return TaskHead(
            key=task.key,
            op=task.op,
            shape=task.shape,
            flops=task.flops,
            traffic_bytes=task.traffic_bytes,
            inputs=list(map(_tensor, task.inputs)),
            outputs=list(map(_tensor, task.outputs)),
        )


def _tensor(tensor: Tensor) -> TensorShown:
    return TensorShown(
        name=tensor.name, dtype=tensor.dtype.value, extents=list(tensor.shape), is_constant=tensor.constant
    )


class ScheduleTold(Answer):
    """A schedule as it is replayed."""

    key: Digest
    sketch: Said
    version: int
    values: KnobValues = Field(description="Knob values.")

    @staticmethod
    def of(schedule: Schedule) -> ScheduleTold:
        """A schedule as views show it."""
        return ScheduleTold(
            key=schedule.key,
            sketch=schedule.sketch,
            version=schedule.version,
            values=dict(schedule.values),
        )

    @property
    def text(self) -> str:
        """On one line, cut where it is long."""
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return shortened(f"{self.sketch}.{self.version}({values})", LONGEST_SCHEDULE)


class TrialBrief(Answer):
    """A trial in a table, or the time of a schedule that was compared with others."""

    schedule: ScheduleTold
    status: Status
    median_ms: float | None
    interval_ms: tuple[float, float] | None = Field(description="95% interval of the median.")
    samples: int | None = Field(description="How many it is of; null where that is not told.")
    max_rel_err: float | None = Field(description="Largest error against the reference; null where there is no number.")
    error: Said
    build_ms: float | None
    job: int | None = Field(description="The job that measured it; null: it was imported.")
    ordinal: int | None = Field(description="0, 1, 2, ... within the job.")
    created_at: datetime | None
    is_confirmed: bool = Field(description="Whether the time is that of a comparison in fresh processes.")

    @staticmethod
    def of(line: TrialLine) -> TrialBrief:
        """A trial as views show it."""
        return TrialBrief(
            schedule=ScheduleTold.of(line.schedule),
            status=line.status,
            median_ms=in_ms(line.median_s),
            interval_ms=interval_ms(line.low_s, line.high_s),
            samples=line.samples,
            max_rel_err=finite(line.max_rel_err),
            error=line.error,
            build_ms=in_ms(line.build_s),
            job=line.job_id,
            ordinal=line.ordinal,
            created_at=line.created_at,
            is_confirmed=False,
        )

    @staticmethod
    def chosen(best: Best, line: TrialLine | None) -> TrialBrief:
        """What is used, by the time that it was chosen for; `line` is its trial, where there is one."""
        beside = {} if line is None else TrialBrief.of(line).model_dump()
        own = {
            "schedule": ScheduleTold.of(best.schedule),
            "status": Status.OK,
            "median_ms": in_ms(best.median_s),
            "interval_ms": interval_ms(best.low_s, best.high_s),
            "is_confirmed": best.is_confirmed,
        }
        unknown: dict[str, Any] = dict.fromkeys(("samples", "max_rel_err", "build_ms", "job", "ordinal", "created_at"))
        return TrialBrief.model_validate(unknown | {"error": ""} | beside | own)


def interval_ms(low_s: float | None, high_s: float | None) -> tuple[float, float] | None:
    """An interval in milliseconds, where both ends are known."""
    return None if low_s is None or high_s is None else (1e3 * low_s, 1e3 * high_s)


def finite(error: float | None) -> float | None:
    """An error, where it is a number: one that is not counts as infinite."""
    return None if error is None or error == inf else error


class KnobShown(Answer):
    """A knob of a schedule, and its value in others of the same sketch."""

    name: Said
    words: Said = Field(description="What it is, for people; empty where the name says it.")
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
            words=MEANINGS[feature].words if (feature := f"knob_{name}") in MEANINGS else "",
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

    words: list[Said] = Field(description="What it does, in sentences.")
    parts: list[dict[str, Any]] = Field(
        description="Its loops, as a tree: each is a loop (`kind`, `var`, `extent`, `parts`) or a step (`text`)."
    )
    is_pending: bool = Field(description="Whether this is still being worked out.")
    why: Said = Field(description="Why it can't be; empty where it can.")

    @staticmethod
    def of(found: Form | Failure | None) -> FormShown:
        """What was worked out so far."""
        match found:
            case None:
                return FormShown(words=[], parts=[], is_pending=True, why="")
            case Failure(why):
                return FormShown(words=[], parts=[], is_pending=False, why=why)
            case Form(words, parts):
                return FormShown(words=list(words), parts=list(map(to_json, parts)), is_pending=False, why="")


class ToleranceShown(Answer):
    """How far off an output may be, relative to its largest magnitude."""

    output: Said
    dtype: Said
    tolerance: float = Field(description="0: it must be equal.")


def tolerances(task: Task) -> list[ToleranceShown]:
    """By which results of candidates are checked."""
    from tunewright.workers.check import TOLERANCE, tolerance_factor  # takes a while to import

    factor = tolerance_factor(task)
    return [
        ToleranceShown(output=one.name, dtype=one.dtype.value, tolerance=TOLERANCE.get(one.dtype.numpy, 0.0) * factor)
        for one in task.outputs
    ]


def task_of(store: SqlStore, task_key: str) -> Task:
    """A task by its key. Raises Problem where it is not known, StoreError."""
    try:
        return store.task(task_key)
    except NotFound as error:
        raise Problem(Kind.NO_SUCH_TASK, f"no task has the key {task_key}") from error


def target_of(store: SqlStore, target_key: str) -> Target:
    """A target by its key. Raises Problem where it is not known, StoreError."""
    try:
        return store.target(target_key)
    except NotFound as error:
        raise Problem(Kind.NO_SUCH_TARGET, f"no target has the key {target_key}") from error


def default_of(task: Task, target: Target) -> Schedule | None:
    """The default schedule; None where no sketch applies."""
    try:
        return default_schedule(task, target)
    except Illegal:
        return None
