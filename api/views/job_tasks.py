"""The tasks of a job: what each takes of a run of the model, what was spent on it, and what is expected of it still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

from pydantic import Field

from tunewright.db.jobs import Job, JobTask
from tunewright.db.sql_store import SqlStore
from tunewright.search_space.measurement import Status
from tunewright.tuner.insight import told
from tunewright.tuner.jobs.report import Outcome
from tunewright.tuner.jobs.view import CLEAR_GAIN
from tunewright.tuner.models.assembly import Assembly, total_s
from tunewright.tuner.text import ratio
from tunewright.tuner.units import in_ms, in_s

from ..schemas import Answer
from .history import History, Times
from .said import Said

MUCH = 0.5
"""Of most tasks little is expected; those of which at least this part of the most is expected stand out."""


class Reason(StrEnum):
    """Why a task gets the trials that it gets, or none, as far as the scheduler told."""

    UNTRIED = "untried"  # each task has one trial before any has two
    FAILING = "failing"  # all that was tried fails
    EXHAUSTED = "exhausted"  # its spaces hold nothing more to try
    MOST = "most"  # more trials are expected to bring the model most here, or nearly
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


class TaskLine(Answer):
    """A task in the list of a job."""

    key: Said
    op: Said = Field(description="What it is, for people; with its shapes where others of the job are called alike.")
    uses: int = Field(description="How often the model runs it, as things stand.")
    occurrences: int = Field(description="How often it occurs in the model. Some of them may run as others instead.")
    default_ms: float | None = Field(description="Time of its default schedule; null: not known, or it fails.")
    best_ms: float | None = Field(description="The same of the best one that is known.")
    speedup: float | None
    is_confirmed: bool = Field(
        description="Whether these were timed side by side in fresh processes. Else they are times of trials."
    )
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    best_interval_ms: tuple[float, float] | None
    noise: Said = Field(description="Why the machine was too busy to rely on these; empty where it was not.")
    before_ms: float | None = Field(description="What it takes of a run of the model on default schedules.")
    after_ms: float | None = Field(description="What it takes of a run on the best ones.")
    before_share: float | None = Field(description="The same as parts of the run.")
    after_share: float | None
    saved_share: float | None = Field(description="What part of all that was saved of a run was saved here.")
    trials: int = Field(description="Candidates that the job measured of it.")
    trials_share: float = Field(description="The same as a part of all that it measured.")
    failed: int = Field(description="Of them, those that failed.")
    expected_share: float | None = Field(
        description="What part of a run searching for as long again is expected to take off it here."
    )
    reason: Reason = Field(description="Why it gets more trials, or none.")
    improved_trial: int | None = Field(description="The trial of the job, from 1 on, that made it faster last.")
    peak_share: float | None = Field(
        description="Of the most that the machine was measured to compute, what its best one does."
    )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the model by the times of its tasks, in the order of the job's tasks; None: not known."""

    times: Sequence[Times]
    uses: Sequence[int]
    before_ms: Sequence[float | None]  # of each task, on default schedules
    after_ms: Sequence[float | None]  # on the best ones, or again on defaults where these were kept

    @property
    def default_ms(self) -> float | None:
        """The whole run on default schedules."""
        return _sum(self.before_ms)

    @property
    def tuned_ms(self) -> float | None:
        """The same on the best ones."""
        return _sum(self.after_ms)


def run_of(job: Job, history: History) -> Run:
    """What a run of the job's model takes, by its report or, without one, by what is known so far."""
    tasks = job.spec.tasks
    known = _reported(job.result) or history.times
    is_kept = told.word(job.result, "outcome") == Outcome.DEFAULTS_KEPT
    times = [known.get(task.task_key, Times()) for task in tasks]
    assembly = _assembly(job)
    uses = _chosen(
        job, assembly, [_known_s(one, history.counts.get(key.task_key)) for one, key in zip(times, tasks, strict=True)]
    )
    return Run(
        times,
        uses,
        [_part(count, one.default_ms) for count, one in zip(assembly.apart, times, strict=True)],
        [_part(count, one.default_ms if is_kept else one.best_ms) for count, one in zip(uses, times, strict=True)],
    )


def names(store: SqlStore, task_keys: Sequence[str]) -> dict[str, str]:
    """What tasks are, by key; where several are called alike, with their shapes. Raises StoreError."""
    ops = store.known.ops(task_keys)
    often = Counter(ops.values())
    shapes = store.known.shapes([key for key, op in ops.items() if often[op] > 1])
    return ops | {key: f"{ops[key]} {shape}" for key, shape in shapes.items() if shape}


@dataclass(frozen=True, slots=True)
class _Whole:
    """What the figures of a task are parts of."""

    before_ms: float | None
    after_ms: float | None
    saved_ms: float  # by the tasks that became faster
    trials: int
    gains: Sequence[float | None] | None  # of each task; None: nothing was told
    peaks: Mapping[str, float | None]  # by task key: of the machine's peak, what its best schedule does

    @property
    def most_gain(self) -> float:
        """Of any task."""
        return max((gain for gain in self.gains or () if gain is not None), default=0.0)


def lines(job: Job, history: History, run: Run, ops: Mapping[str, str]) -> list[TaskLine]:
    """All tasks of a job, those first that take most of a run. `ops` say what they are, by key."""
    whole = _Whole(
        run.default_ms,
        run.tuned_ms,
        sum(max(_saved(*parts) or 0.0, 0.0) for parts in zip(run.before_ms, run.after_ms, strict=True)),
        sum(sum(ended.values()) for ended in history.counts.values()),
        _gains(job, history),
        {told.word(entry, "key"): told.number(entry, "fraction_of_peak") for entry in _entries(job.result)},
    )
    most = whole.most_gain
    found = [
        _line(n, task, run, history, whole, most, ops.get(task.task_key, "")) for n, task in enumerate(job.spec.tasks)
    ]
    return sorted(found, key=SORTED_BY[TaskSort.TIME])


def _line(n: int, task: JobTask, run: Run, history: History, whole: _Whole, most: float, op: str) -> TaskLine:
    ended = history.counts.get(task.task_key, {})
    times, before_ms, after_ms = run.times[n], run.before_ms[n], run.after_ms[n]
    trials, saved_ms = sum(ended.values()), _saved(before_ms, after_ms)
    gain = whole.gains[n] if whole.gains else None
    return TaskLine(
        key=task.task_key,
        op=op,
        uses=run.uses[n],
        occurrences=task.occurrences,
        default_ms=times.default_ms,
        best_ms=times.best_ms,
        speedup=ratio(times.default_ms, times.best_ms),
        is_confirmed=times.is_confirmed,
        default_interval_ms=times.default_interval_ms,
        best_interval_ms=times.best_interval_ms,
        noise=times.noise,
        before_ms=before_ms,
        after_ms=after_ms,
        before_share=_share(before_ms, whole.before_ms),
        after_share=_share(after_ms, whole.after_ms),
        saved_share=_share(None if saved_ms is None else max(saved_ms, 0.0), whole.saved_ms),
        trials=trials,
        trials_share=trials / whole.trials if whole.trials else 0.0,
        failed=trials - ended.get(Status.OK, 0),
        expected_share=gain,
        reason=_reason(times, run.uses[n], ended, whole.gains is not None, gain, most),
        improved_trial=history.times.get(task.task_key, Times()).improved_trial,
        peak_share=whole.peaks.get(task.task_key),
    )


def _weight(line: TaskLine) -> float:
    return max(line.after_ms or 0.0, line.before_ms or 0.0)


def _most(value: float | None) -> float:
    """Sorts large values first, and unknown ones last."""
    return inf if value is None else -value


SORTED_BY: dict[TaskSort, Callable[[TaskLine], tuple[float, float]]] = {
    TaskSort.TIME: lambda line: (_most(line.after_ms), -_weight(line)),
    TaskSort.SAVED: lambda line: (_most(line.saved_share), -_weight(line)),
    TaskSort.EXPECTED: lambda line: (_most(line.expected_share), -_weight(line)),
    TaskSort.TRIALS: lambda line: (-line.trials, -_weight(line)),
    TaskSort.FAILED: lambda line: (-line.failed, -_weight(line)),
}
"""What tasks are sorted by; of equal ones the heavier comes first."""


# Times


def _reported(result: Mapping[str, Any] | None) -> dict[str, Times]:
    """By task key, what a report says; nothing where there is none."""
    found = {told.word(entry, "key"): Times.of_report(entry) for entry in _entries(result)}
    return {key: times for key, times in found.items() if times.default_ms is not None or times.best_ms is not None}


def _entries(result: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    entries = None if result is None else result.get("tasks")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _known_s(times: Times, ended: Mapping[Status, int] | None) -> float | None:
    """The best time; infinite where all that was tried fails, None where nothing was tried."""
    if times.best_ms is not None:
        return in_s(times.best_ms)
    return inf if ended and not ended.get(Status.OK) else None


def _assembly(job: Job) -> Assembly:
    """What the model may be put together from; each task apart where the settings say what can't be."""
    counts = [task.occurrences for task in job.spec.tasks]
    try:
        return Assembly.of_json(counts, job.spec.settings.get("chains", []))
    except (KeyError, TypeError, ValueError):
        return Assembly(tuple(counts))


def _chosen(job: Job, assembly: Assembly, known_s: Sequence[float | None]) -> Sequence[int]:
    """How often each task is run: as the report says, or as follows from the times."""
    reported = {told.word(entry, "key"): told.number(entry, "chosen") for entry in _entries(job.result)}
    counts = [reported.get(task.task_key) for task in job.spec.tasks]
    known = [int(count) for count in counts if count is not None]
    return known if len(known) == len(counts) and known else assembly.uses(known_s)


def _part(count: int, time_ms: float | None) -> float | None:
    """What a task takes of a run; nothing where the model doesn't run it."""
    return in_ms(total_s([count], [in_s(time_ms)]))


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _saved(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after


# Why


def _gains(job: Job, history: History) -> list[float | None] | None:
    """What is expected of each task, as was told last; None of one where nothing is left to try."""
    for data in (job.progress, history.expected):
        gains = None if data is None else data.get("task_gains")
        if isinstance(gains, list) and len(gains) == len(job.spec.tasks):
            return [told.number({"gain": gain}, "gain") for gain in gains]
    return None


def _reason(
    times: Times, uses: int, ended: Mapping[Status, int], is_told: bool, gain: float | None, most: float
) -> Reason:
    if times.best_ms is None and not ended.get(Status.OK):
        return Reason.FAILING if ended else Reason.UNTRIED
    if not is_told:
        return Reason.UNKNOWN
    if gain is None:
        return Reason.EXHAUSTED
    if gain < CLEAR_GAIN:
        return Reason.LITTLE if uses else Reason.UNUSED
    return Reason.MOST if gain >= MUCH * most else Reason.SOME
