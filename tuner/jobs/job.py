"""TuningJob: from a job that is leased to its result. Read `TuningJob.run` first; how it searches is in `search`.

All state is in the database: a job whose process is killed at any moment goes on where it was, in any other process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf

from tunewright.codegen.target import Target
from tunewright.db.jobs import EventKind, Job, JobSpec, JobState, NewEvent
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import holds
from tunewright.workers.pool import Pool
from tunewright.workers.rates import Rates, measure

from ..lookup import TRANSFERRED, lookup
from ..models.assembly import Assembly, total_s
from ..settings import settings
from .assignment import Assignment
from .claims import Claims
from .confirming import Confirming
from .learning import Learning
from .progress import Progress, Watch
from .report import Ended, Outcome, Report, TaskReport
from .search import Search
from .stage import Stage
from .task_state import TaskState
from .tenure import Stopped, Tenure
from .whole_model import ModelTimes, Timing, Variant, is_here

DEFAULT, TUNED = "default", "tuned"
"""Names of the ways in which a whole model is timed."""

STRATEGY = "evolutionary"
"""Where the settings of a job name none."""


class TuningJob:
    """Works on a job under the lease of `tenure`, on its tasks and how often each occurs, in their order.

    What is tried follows from the job's settings `seed` and `strategy`. `timing` times the whole model at the end.
    """

    def __init__(
        self,
        job: Job,
        tasks: Sequence[tuple[Task, int]],
        target: Target,
        store: SqlStore,
        pool: Pool,
        tenure: Tenure,
        *,
        timing: Timing | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._job, self._target, self._store, self._tenure, self._timing = job, target, store, tenure, timing
        self._watch = watch or (lambda progress: None)
        self._started = time.monotonic()
        self._ended_s: float | None = None  # how long the search took
        seed, strategy = int(job.spec.settings.get("seed", 0)), str(job.spec.settings.get("strategy", STRATEGY))
        self._learning = Learning(store, target, {task.key for task, _ in tasks}, seed)
        self._states = [
            TaskState.of(
                task,
                occurrences,
                target,
                store.records(task.key, target.key),
                self._learning.costs,
                strategy=strategy,
                seed=seed,
            )
            for task, occurrences in tasks
        ]
        _borrow(store, target, self._states)
        self._earlier = sum(store.jobs.statuses(job.id).values())
        self._claims = Claims(store, target.key, tenure)
        self._assembly = _assembly(job.spec)
        self._assigned = Assignment(store, pool, target, tenure, self._claims, self._states, self._assembly)
        self._search = Search(
            self._assigned,
            self._learning,
            job.budget,
            self._earlier,
            self._is_over,
            lambda *trial: self._report_progress(Stage.SEARCHING, trial),
        )

    def run(self) -> Report:
        """Search until the budget is spent or nothing is left to try, learn, time the findings, and finish the job.

        Where time is over before the trials are, the job of a command is paused, for the same command to go on.
        Raises LeaseLost, having written nothing since; Stopped, having given the job back; PoolError.
        """
        try:
            self._enter(Stage.SEARCHING)
            ended_by = self._search.run()
            self._ended_s = self._searched_s
            self._enter(Stage.LEARNING)
            self._learning.keep(self._job.id)  # if that fails nothing is lost: a report is stored at the very end
            report = self._finish(ended_by)
            self._leave(report)
        except Stopped:
            self._stop()
            raise
        self._report_progress(Stage.DONE)
        return report

    def _stop(self) -> None:
        """Give the job back; the database knows whether it is to be paused or cancelled."""
        self._tenure.tell()
        self._store.jobs.give_back(self._tenure.lease)

    def _leave(self, report: Report) -> None:
        lease = self._tenure.lease
        if self._job.attached and report.ended_by is Ended.MINUTES:
            self._store.jobs.pause_leased(lease, result=report.to_json())
        else:
            self._store.jobs.finish(lease, JobState.SUCCEEDED, result=report.to_json())

    @property
    def _searched_s(self) -> float:
        """Seconds in this process, but for those in which other jobs had all tasks."""
        if self._ended_s is not None:
            return self._ended_s
        return time.monotonic() - self._started - self._claims.waited_s

    @property
    def _counted_s(self) -> float:
        """Seconds of the job that count: of a command's job those of this run alone."""
        return self._searched_s if self._job.attached else self._job.spent_s + self._searched_s

    def _is_over(self) -> bool:
        """Whether the time of the job is."""
        return self._counted_s >= self._job.budget.seconds

    def _enter(self, stage: Stage) -> None:
        """Begin a stage: whoever watches is told at once."""
        self._report_progress(stage)
        self._tenure.tell([NewEvent(EventKind.STAGE, {"stage": stage.value})])

    def _report_progress(self, stage: Stage, last: tuple[TaskState, Schedule, Measurement] | None = None) -> None:
        progress = Progress(
            stage,
            self._search.own,
            self._job.budget,
            time.monotonic() - self._started,
            self._states,
            self._assembly,
            self._earlier,
            last,
            self._counted_s,
            forecast=self._search.forecast,
        )
        if stage is not Stage.DONE:  # then the lease has ended
            self._tenure.note(progress.to_json(), self._searched_s)
        self._watch(progress)

    def _finish(self, ended_by: Ended) -> Report:
        self._enter(Stage.CONFIRMING)
        rates = machine_rates(self._target)
        tasks = Confirming(self._assigned, rates.peak_flops_s if rates else None).run()
        self._enter(Stage.RUNNING)
        times = self._whole_model(tasks)
        self._tenure.check()
        statuses = self._store.jobs.statuses(self._job.id)
        report = Report(
            job_id=self._job.id,
            model=self._job.label,
            target=str(self._target),
            trials=sum(statuses.values()),
            seconds=time.monotonic() - self._started,
            tasks=tuple(tasks),
            default_s=None,
            tuned_s=None,
            peak_gflops=rates.peak_flops_s / 1e9 if rates else None,
            failed={status.value: count for status, count in statuses.items() if status is not Status.OK},
            fallback=times.fallback,
            whole_model=times.reason,
            ended_by=ended_by,
            tasks_default_s=total_s(self._assembly.apart, [task.default_s for task in tasks]),
        )
        return judged(report, times, self._target, self._assembly)

    def _whole_model(self, tasks: Sequence[TaskReport]) -> ModelTimes:
        """The model apart on default schedules and as chosen on those found; what is known to fail is not run."""
        if self._timing is None:
            return ModelTimes(reason="nobody asked for it")
        apart = Variant({state.task.key: state.default for state in self._states})
        chosen = Variant(
            {task.key: Schedule.from_json(task.schedule) for task in tasks},
            {task.key: inf if task.best_s is None else task.best_s for task in tasks if task.trials},
        )
        wanted = {
            name: variant
            for name, variant, uses in (
                (DEFAULT, apart, self._assembly.apart),
                (TUNED, chosen, [task.chosen for task in tasks]),
            )
            if not any(
                count and state.fails(variant.schedules[state.task.key])
                for count, state in zip(uses, self._states, strict=True)
            )
        }
        if len(wanted) == 2 and self._is_default(tasks):  # one and the same model: two timings would differ by luck
            times = self._timing({DEFAULT: apart})
            return replace(times, latencies=dict.fromkeys(wanted, *times.latencies.values()) if times.latencies else {})
        return self._timing(wanted)

    def _is_default(self, tasks: Sequence[TaskReport]) -> bool:
        """Whether what was found best is what runs without tuning."""
        return [task.chosen for task in tasks] == self._assembly.apart and all(
            task.schedule == state.default.to_json()
            for task, state in zip(tasks, self._states, strict=True)
            if task.chosen
        )


def judged(report: Report, times: ModelTimes, target: Target, assembly: Assembly) -> Report:
    """The report with what the whole model was seen to take, and what follows for it.

    It has to be faster by more than what could be chance, else it stays on its defaults and takes what it took.
    """
    default, tuned, speedup = times.taken(DEFAULT), times.taken(TUNED), times.ratio(DEFAULT, TUNED)
    report = replace(report, noise=times.noise(target).reason, outcome=Outcome.UNTIMED)
    if default is not None:
        report = replace(report, default_s=default.median_s, default_interval_s=(default.low_s, default.high_s))
    if tuned is not None:
        report = replace(report, tuned_s=tuned.median_s, tuned_interval_s=(tuned.low_s, tuned.high_s))
    if speedup is None:
        return report
    if speedup[0] > 1.0:
        return replace(report, outcome=Outcome.FASTER, speedup_interval=speedup)
    is_other = times.latencies[DEFAULT] is not times.latencies[TUNED]
    tasks = [replace(task, chosen=count) for task, count in zip(report.tasks, assembly.apart, strict=True)]
    return replace(
        report,
        tasks=tuple(tasks),
        outcome=Outcome.DEFAULTS_KEPT,
        tuned_s=report.default_s,
        tuned_interval_s=report.default_interval_s,
        rejected_s=report.tuned_s if is_other else None,
        rejected_interval=speedup if is_other else None,
    )


def _assembly(spec: JobSpec) -> Assembly:
    """What the model of a job may be put together from: `Assembly.settings`."""
    return Assembly.of_json([task.occurrences for task in spec.tasks], spec.settings.get("chains", []))


def _borrow(store: SqlStore, target: Target, states: Sequence[TaskState]) -> None:
    """Have tried early what was imported, whose times are hints until then, and of what nothing was tried yet, what is
    best for a similar target or task: it is often near the best for this one.
    """
    untried = [state for state in states if not state.measured]
    found = lookup(store, [state.task for state in untried], target)
    for state in states:
        one = found.get(state.task.key)
        if one is not None and (one.match in TRANSFERRED or one.is_imported):
            state.borrowed.append(one.schedule)
        hints = store.hints(state.task.key, target.key)
        state.borrowed += [s for s in hints if s not in state.borrowed and holds(state.task, target, s)]


@cache
def machine_rates(target: Target) -> Rates | None:
    """What this machine can do at most, measured once in a process; None where the target is another machine."""
    return measure(target, settings().objects) if is_here(target) else None
