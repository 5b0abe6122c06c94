"""TuningJob: the loop from a model to records. Read `TuningJob.run` first.

    scheduler picks a task -> strategy proposes schedules, the cost model ranking them -> pool builds, checks and times
    -> store keeps each measurement at once -> strategy and cost model learn

All state is in the database: a job killed at any moment goes on where it was when the same command runs again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tunewright.codegen.build import ObjectCache
from tunewright.codegen.target import Target
from tunewright.costmodel.model import Trials
from tunewright.costmodel.roofline import floor_s
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.store import UNFINISHED, Job, JobSpec, JobState, JobTask, Store, StoreError
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds, spaces
from tunewright.search_space.space import Space
from tunewright.workers.lock import HostLock
from tunewright.workers.pool import Pool, ReferenceFailed

from .inputs import example_feeds
from .latency import side_by_side
from .limits import Rates, measure
from .model import Model
from .report import Report, TaskReport
from .scheduler import TaskScheduler
from .session import InferenceSession
from .settings import settings
from .stage import Stage
from .strategy import STRATEGIES, Strategy

HISTORY = 5_000
"""Most trials of the database that the cost model learns from, the newest first."""

REFIT = 16
"""Trials between two fits of the cost model."""

FINALISTS = 3
"""Schedules that are compared with the default when the search is over."""

HOPELESS = 3.0
"""A candidate this many times slower than the best is not timed to the end."""

_log = logging.getLogger("tunewright")
_timing_log, _schedule_log = logging.getLogger("tunewright.timing"), logging.getLogger("tunewright.schedule")


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: after so many trials of the job, or so many seconds of this process, whichever comes first."""

    trials: int
    seconds: float = float("inf")


@dataclass(slots=True)
class TaskState:
    """What the job knows of one task."""

    task: Task
    occurrences: int
    default: Schedule
    spaces: tuple[Space, ...]
    strategy: Strategy
    measured: dict[str, tuple[Schedule, Measurement]] = field(default_factory=dict)  # by schedule key
    refuted: set[str] = field(default_factory=set)  # keys of schedules that worked once, but not when compared

    @property
    def best(self) -> tuple[Schedule, Measurement] | None:
        """The fastest trial; the first of equals."""
        done = [m for m in self.measured.values() if m[1].status is Status.OK]
        return min(done, key=lambda m: m[1].median_s or float("inf"), default=None)

    @property
    def default_s(self) -> float | None:
        """The time of the default schedule, if it has been measured and works."""
        entry = self.measured.get(self.default.key)
        return entry[1].median_s if entry else None

    def fails(self, schedule: Schedule) -> bool:
        """Whether a schedule is known not to work."""
        entry = self.measured.get(schedule.key)
        return schedule.key in self.refuted or (entry is not None and entry[1].status is not Status.OK)

    @property
    def best_s(self) -> float | None:
        return self.best[1].median_s if self.best else None

    def finalists(self, target: Target, also: Schedule | None) -> list[tuple[Schedule, Measurement]]:
        """What may turn out best: the default, `also`, and the fastest few of the others, of each object code one.

        Only what worked, and is a legal point still.
        """
        works = {key: entry for key, entry in self.measured.items() if entry[1].status is Status.OK}
        chosen = [
            works[s.key]
            for s in dict.fromkeys((self.default, also))
            if s and s.key in works and holds(self.task, target, s)
        ]
        seen = {measurement.object_sha256 for _, measurement in chosen} - {""}
        added = 0
        for schedule, measurement in sorted(works.values(), key=lambda entry: entry[1].median_s or float("inf")):
            if added == FINALISTS:
                break
            is_other = measurement.object_sha256 not in seen and all(schedule != s for s, _ in chosen)
            if is_other and holds(self.task, target, schedule):
                chosen.append((schedule, measurement))
                seen |= {measurement.object_sha256} - {""}
                added += 1
        return chosen


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a job stands, after each trial."""

    stage: Stage
    trials: int
    budget: Budget
    elapsed_s: float  # in this process
    tasks: Sequence[TaskState]
    earlier: int = 0  # trials of the job before this process
    last: tuple[TaskState, Schedule, Measurement] | None = None

    @property
    def speedup(self) -> float | None:
        """Time of all tasks on their defaults over that on their best; None before each has both."""
        if any(t.default_s is None or t.best_s is None for t in self.tasks) or not self.tasks:
            return None
        default_s = sum(t.occurrences * (t.default_s or 0.0) for t in self.tasks)
        return default_s / sum(t.occurrences * (t.best_s or 0.0) for t in self.tasks)

    @property
    def left_s(self) -> float | None:
        """Expected seconds until the budget is spent."""
        by_time = self.budget.seconds - self.elapsed_s
        by_trials = float("inf")
        if self.trials > self.earlier:
            by_trials = self.elapsed_s / (self.trials - self.earlier) * (self.budget.trials - self.trials)
        left = min(by_time, by_trials)
        return max(left, 0.0) if np.isfinite(left) else None


Watch = Callable[[Progress], None]


class TuningJob:
    """One model on one target within one budget."""

    def __init__(
        self,
        model: Model,
        target: Target,
        store: Store,
        pool: Pool,
        budget: Budget,
        *,
        seed: int = 0,
        strategy: str = "evolutionary",
        watch: Watch | None = None,
    ) -> None:
        self._model, self._target, self._store, self._pool, self._budget = model, target, store, pool, budget
        self._watch = watch or (lambda progress: None)
        self._started = time.monotonic()
        self._job = self._open(seed, strategy)
        self._own = self._earlier = self._stored()
        self._costs = XGBModel(seed)
        self._tasks = [self._state(task, count, strategy, seed) for task, count in model.tasks.values()]
        keys = {state.task.key: n for n, state in enumerate(self._tasks)}
        self._others = list(_history(store, target, keys))
        self._unlearned = REFIT
        self._scheduler = TaskScheduler(
            [state.occurrences for state in self._tasks],
            [floor_s(state.task, target) for state in self._tasks],
            [[_time_s(m) for _, m in state.measured.values()] for state in self._tasks],
        )

    def _open(self, seed: int, strategy: str) -> Job:
        self._store.add_target(self._target)
        for task, _ in self._model.tasks.values():
            self._store.add_task(task)
        # The budget is no part of what the job is: a run with another one takes the same job up.
        spec = JobSpec(
            model_sha256=self._model.sha256,
            target_key=self._target.key,
            tasks=tuple(JobTask(key, count) for key, (_, count) in self._model.tasks.items()),
            settings={"seed": seed, "strategy": strategy},
        )
        return self._store.open_job(spec, self._model.label)

    def _state(self, task: Task, occurrences: int, strategy: str, seed: int) -> TaskState:
        records = self._store.records(task.key, self._target.key)
        offered = spaces(task, self._target)
        made = STRATEGIES[strategy](task, self._target, offered, self._costs, seed, records)
        measured = {record.schedule.key: (record.schedule, record.measurement) for record in records}
        return TaskState(task, occurrences, default_schedule(task, self._target), offered, made, measured)

    def run(self) -> Report:
        """Search until the budget is spent, then time the findings.

        The job has succeeded once all its trials are spent. It is left as paused, to be taken up again, where the time
        was over before, and on KeyboardInterrupt.
        """
        try:
            self._search()
            return self._finish()
        except KeyboardInterrupt:
            if self._store.job(self._job.id).state in UNFINISHED:
                self._store.pause_job(self._job.id)
            raise

    def _search(self) -> None:
        self._report_progress(Stage.SEARCHING)
        while not self._out_of_time():
            batch = self._scheduler.next_batch(self._budget.trials - self._own)
            if batch is None:
                return
            index, size = batch
            self._learn()
            state = self._tasks[index]
            schedules = state.strategy.ask(size)
            if not schedules:
                self._scheduler.exhaust(index)
                continue
            try:
                self._measure(index, schedules)
            except ReferenceFailed as failure:  # of the task, not of its candidates: the others go on
                _log.warning("not tuned: %s", failure)
                self._scheduler.exhaust(index)

    def _measure(self, index: int, schedules: Sequence[Schedule]) -> None:
        state = self._tasks[index]
        candidates = [Candidate(state.task, self._target, schedule) for schedule in schedules]
        limit = HOPELESS * state.best_s if state.best_s else None
        with closing(self._pool.measure(candidates, limit)) as results:
            for candidate, measurement in results:
                self._keep(index, candidate.schedule, measurement)
                if self._out_of_time() or self._own >= self._budget.trials:
                    return

    def _stored(self) -> int:
        """Trials of the job, those of another process that works on it among them."""
        return sum(self._store.statuses(self._job.id).values())

    def _keep(self, index: int, schedule: Schedule, measurement: Measurement) -> None:
        state = self._tasks[index]
        _log_trial("task", state.task, schedule, measurement)
        is_new = self._store.record(Record(state.task.key, self._target.key, schedule, measurement), self._job.id)
        state.measured.setdefault(schedule.key, (schedule, measurement))
        state.strategy.tell([(schedule, measurement)])
        self._scheduler.tell(index, [_time_s(measurement)])
        self._own = self._stored()
        self._unlearned += is_new
        self._report_progress(Stage.SEARCHING, (state, schedule, measurement))

    def _learn(self) -> None:
        if self._unlearned < REFIT:
            return
        own = [
            Trials.of(state.task, self._target, space, state.measured.values())
            for state in self._tasks
            for space in state.spaces
        ]
        self._costs.fit([*self._others, *own])
        self._unlearned = 0

    def _out_of_time(self) -> bool:
        return time.monotonic() - self._started >= self._budget.seconds

    def _report_progress(self, stage: Stage, last: tuple[TaskState, Schedule, Measurement] | None = None) -> None:
        elapsed_s = time.monotonic() - self._started
        self._watch(Progress(stage, self._own, self._budget, elapsed_s, self._tasks, self._earlier, last))

    def _finish(self) -> Report:
        self._report_progress(Stage.CONFIRMING)
        rates = measure(self._target)
        tasks = [self._confirmed(state, rates) for state in self._tasks]
        self._report_progress(Stage.RUNNING)
        default_s, tuned_s = self._whole_model(tasks)
        statuses = self._store.statuses(self._job.id)
        self._own = sum(statuses.values())
        report = Report(
            job_id=self._job.id,
            model=self._model.label,
            target=str(self._target),
            trials=self._own,
            seconds=time.monotonic() - self._started,
            tasks=tuple(tasks),
            default_s=default_s,
            tuned_s=tuned_s,
            peak_gflops=rates.peak_flops_s / 1e9,
            failed={status.value: count for status, count in statuses.items() if status is not Status.OK},
            fallback=self._model.fallback_ops,
        )
        self._leave(report)
        self._report_progress(Stage.DONE)
        return report

    def _leave(self, report: Report) -> None:
        try:
            if self._own < self._budget.trials and self._out_of_time():
                self._store.pause_job(self._job.id)
            else:
                self._store.finish_job(self._job.id, JobState.SUCCEEDED, report.to_json())
        except StoreError:
            if self._store.job(self._job.id).state is not JobState.SUCCEEDED:
                raise  # else another process finished the same job meanwhile; this report is as good as its own

    def _confirmed(self, state: TaskState, rates: Rates) -> TaskReport:
        """The task's report: the finalists timed in turn in a fresh process, so that ratios are no two trials' luck."""
        compared = self._compared(state)
        times = {s.key: m.median_s for s, m in compared if m.status is Status.OK}
        holding = [schedule for schedule, _ in compared if schedule.key in times]
        schedule = min(holding, key=lambda s: times[s.key] or float("inf"), default=state.default)
        best_s = times.get(schedule.key)
        return TaskReport(
            key=state.task.key,
            op=state.task.op,
            occurrences=state.occurrences,
            trials=len(state.measured),
            flops=state.task.flops,
            default_s=times.get(state.default.key),
            best_s=best_s,
            fraction_of_peak=state.task.flops / best_s / rates.peak_flops_s if best_s else None,
            schedule=schedule.to_json(),
        )

    def _compared(self, state: TaskState) -> list[tuple[Schedule, Measurement]]:
        """The finalists with their times beside each other; the database keeps the choice among them."""
        before = self._store.confirmed_many([state.task.key], self._target.key).get(state.task.key)
        for record in self._store.records(state.task.key, self._target.key):  # another process may have measured some
            state.measured.setdefault(record.schedule.key, (record.schedule, record.measurement))
        finalists = state.finalists(self._target, before.schedule if before else None)
        if len(finalists) < 2 and not before:
            return finalists
        schedules = [schedule for schedule, _ in finalists]
        try:
            measured = self._pool.compare([Candidate(state.task, self._target, schedule) for schedule in schedules])
        except ReferenceFailed as failure:
            _log.warning("not compared: %s", failure)
            return finalists
        compared = list(zip(schedules, measured, strict=True))
        for schedule, measurement in compared:
            _log_trial("comparison of task", state.task, schedule, measurement)
        state.refuted |= {schedule.key for schedule, measurement in compared if measurement.status is not Status.OK}
        choice = min(compared, key=lambda entry: (entry[1].status is not Status.OK, _time_s(entry[1])), default=None)
        if choice:
            self._store.confirm(Record(state.task.key, self._target.key, *choice))
        return compared

    def _whole_model(self, tasks: Sequence[TaskReport]) -> tuple[float | None, float | None]:
        """Seconds of one run of the model, on default and on found schedules, run in turn.

        None where a schedule is known to fail: it is not run in this process.
        """
        wanted = {
            "default": {state.task.key: state.default for state in self._tasks},
            "tuned": {task.key: Schedule.from_json(task.schedule) for task in tasks},
        }
        feeds, objects = example_feeds(self._model), settings().objects
        with ExitStack() as stack:
            calls: dict[str, Callable[[], Any]] = {}
            for name, schedules in wanted.items():
                if not any(state.fails(schedules[state.task.key]) for state in self._tasks):
                    session = InferenceSession.of(self._model, self._target, schedules, ObjectCache(objects))
                    calls[name] = partial(stack.enter_context(session).run, None, feeds)
            with HostLock(objects).timing():
                times = side_by_side(calls)
        default, tuned = times.get("default"), times.get("tuned")
        return default.median_s if default else None, tuned.median_s if tuned else None


def _time_s(measurement: Measurement) -> float:
    return measurement.median_s if measurement.median_s is not None else float("inf")


def _log_trial(what: str, task: Task, schedule: Schedule, measurement: Measurement) -> None:
    outcome = measurement.status.value
    if measurement.median_s is not None:
        outcome = f"{1e3 * measurement.median_s:.4g} ms, {len(measurement.samples_s)} samples"
    _timing_log.debug("%s %s, schedule %s: %s %s", what, task.key[:12], schedule.key[:12], outcome, measurement.error)
    _schedule_log.debug("schedule %s: %s", schedule.key[:12], schedule)


def _history(store: Store, target: Target, own: Mapping[str, int]) -> Iterator[Trials]:
    """What other tasks and targets of the kind taught, for the cost model."""
    groups: dict[tuple[str, str], tuple[Task, Target, list[tuple[Schedule, Measurement]]]] = {}
    for number, (candidate, measurement) in enumerate(store.examples(target.kind)):
        if number >= HISTORY:
            break
        key = candidate.task.key, candidate.target.key
        if candidate.task.key in own and candidate.target.key == target.key:
            continue
        group = groups.setdefault(key, (candidate.task, candidate.target, []))
        group[2].append((candidate.schedule, measurement))
    for task, machine, measured in groups.values():
        for space in spaces(task, machine):
            yield Trials.of(task, machine, space, measured)
