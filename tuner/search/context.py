"""JobContext: a job at work. All its stages have it, claim tasks by it and report progress by it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from tunewright.codegen.target import Target
from tunewright.db.job import EventKind, Job, NewEvent
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import Pool

from ..models.assembly import Assembly
from ..text import counted, short
from .end_estimate import EndEstimate
from .lease_keeper import LeaseKeeper
from .machine_log import MachineLog
from .progress import Progress, Watch
from .scheduling.outlook import Forecast
from .stage import JobStage
from .task_state import TaskState

WAIT_S = 1.0
"""The longest wait for another job: one whose process died releases its claim silently."""

PAUSE_S = 0.1
"""Seconds between two attempts: every trial of others is a change, which ends a wait for changes at once."""

FEWEST_TRIALS = 4
"""Trials of a process by which their pace tells something, where there is no forecast yet."""

_timing_log, _schedule_log = logging.getLogger("tunewright.timing"), logging.getLogger("tunewright.schedule")


@dataclass(slots=True)
class JobContext:
    """A job at work: its store, pool, target and tasks, its trials, and how long it has taken.

    A task is measured for one job at a time, so that no candidate is measured twice: a job claims one task at a time.
    """

    job: Job  # as it was leased, but for its budget
    store: Store
    pool: Pool
    target: Target
    keeper: LeaseKeeper
    states: Sequence[TaskState]
    assembly: Assembly  # of the states, by their number
    own_of: Counter[str]  # trials of the job so far, by task key
    watch: Watch = lambda progress: None
    machine: MachineLog | None = None  # None: other machines time
    started_at: float = field(default_factory=time.monotonic)
    forecast: Forecast | None = None  # as of the begin of this round; None where there is none (yet)
    end_estimate: EndEstimate = field(default_factory=EndEstimate)
    confirmed: int = 0  # tasks whose default and best were timed side by side
    to_confirm: int = 0  # the tasks of which that is so in the end; 0: not known yet
    earlier: int = field(init=False)  # trials of the job before this process
    _waited_s: float = 0.0  # for other jobs
    _search_end_s: float | None = None  # how long the search took

    def __post_init__(self) -> None:
        self.earlier = self.own

    @property
    def own(self) -> int:
        """Trials of the job so far."""
        return self.own_of.total()

    @property
    def search_s(self) -> float:
        """Seconds in this process until the search ended, but for those in which other jobs had all tasks."""
        if self._search_end_s is not None:
            return self._search_end_s
        return time.monotonic() - self.started_at - self._waited_s

    @property
    def spent_s(self) -> float:
        """Seconds of searching for the job, over all processes."""
        return self.job.spent_s + self.search_s

    @property
    def seconds_left(self) -> float:
        """Seconds that the budget leaves; infinite where it has no bound."""
        return self.job.budget.seconds_left(self.spent_s)

    @property
    def trials_left(self) -> float:
        """Trials that the budget leaves; infinite where it has no bound."""
        return self.job.budget.trials_left(self.own)

    def take_budget(self) -> None:
        """Go by the budget that the job has by now: people may have raised it."""
        self.job = replace(self.job, budget=self.keeper.budget or self.job.budget)

    def end_search(self) -> None:
        """What follows takes nothing of the budget."""
        self._search_end_s = self.search_s

    def search_again(self) -> None:
        """What follows is of the search again; what was since its end took nothing of the budget."""
        self._waited_s = time.monotonic() - self.started_at - self.search_s
        self._search_end_s = None

    def enter(self, stage: JobStage) -> None:
        """Begin a stage, and report it at once."""
        self.report(stage)
        self.keeper.tell([NewEvent(EventKind.STAGE, {"stage": stage.value})])

    def report(self, stage: JobStage, last: tuple[TaskState, Schedule, Measurement] | None = None) -> None:
        """Report the progress, after the trial `last`."""
        progress = Progress(
            stage,
            self.own,
            self.job.budget,
            time.monotonic() - self.started_at,
            self.states,
            self.assembly,
            last,
            self.spent_s,
            forecast=self.forecast,
            lasts_s=self._lasts_s(stage),
            task_trials=[self.own_of[state.task.key] for state in self.states],
            confirmed=self.confirmed,
            to_confirm=self.to_confirm,
        )
        if last is not None and self.machine is not None:
            self.machine.note(last[2])
        if stage is not JobStage.DONE:  # then the lease has ended
            self.keeper.note(progress.to_json(), self.search_s)
        self.watch(progress)

    def _lasts_s(self, stage: JobStage) -> float:
        """Seconds until the search is expected to end by trials or for want of gain; infinite where that is unknown."""
        trials, trials_left = self.own - self.earlier, self.trials_left
        if self.forecast is not None and stage is JobStage.SEARCHING:
            by_now_s = self.forecast.lasts_s(trials_left, self.job.budget.until)
            return self.end_estimate.left_s(by_now_s, self.spent_s, self.job.budget)
        if trials < FEWEST_TRIALS or not isfinite(trials_left):
            return inf
        return (time.monotonic() - self.started_at) / trials * trials_left

    def claim(self, state: TaskState) -> list[Measurement] | None:
        """Claim the task for this job; returns the measurements that others have added meanwhile, now also in `state`.

        What they have confirmed is in it, too. None where another job has the task. Raises LeaseLost.
        """
        key, fresh = state.task.key, []
        if not self.store.jobs.claim(self.keeper.lease, key):
            return None
        if not self.store.schedule_keys(key, self.target.key) <= state.measured.keys():
            for record in self.store.records(key, self.target.key):
                if record.schedule.key not in state.measured:
                    state.tell(record.schedule, record.measurement)
                    fresh.append(record.measurement)
        recall(self.store, self.target, [state])
        return fresh

    def release(self) -> None:
        """Release the claim."""
        self.store.jobs.release_claims(self.keeper.lease)

    def wait(self) -> None:
        """Wait until others may have released a claim. Raises what `LeaseKeeper.check` raises."""
        started = time.monotonic()
        self.keeper.check()
        time.sleep(PAUSE_S)  # changes meanwhile are not missed: the wait knows of them
        self.store.jobs.wait(WAIT_S)
        self.keeper.check()
        self._waited_s += time.monotonic() - started


def recall(store: Store, target: Target, states: Sequence[TaskState]) -> None:
    """Tell the tasks what the database has as confirmed here, and as their best: what sessions and lookups use."""
    standings = store.standings([state.task.key for state in states], target.key)
    for state in states:
        standing = standings[state.task.key]
        state.recall(standing.comparisons, standing.best, target)


def trials_of(store: Store, job_id: int) -> Counter[str]:
    """The number of trials that a job has measured, by task key. Raises StoreError."""
    return Counter({key: sum(ended.values()) for key, ended in store.trials.counts(job_id).items()})


def log_trial(what: str, task: Task, schedule: Schedule, measurement: Measurement) -> None:
    """Log a trial's outcome, where timing or schedules are logged."""
    if not (_timing_log.isEnabledFor(logging.DEBUG) or _schedule_log.isEnabledFor(logging.DEBUG)):
        return
    outcome = measurement.status.value
    if measurement.median_s is not None:
        outcome = f"{1e3 * measurement.median_s:.4g} ms, {counted(len(measurement.samples_s), 'sample')}"
    _timing_log.debug(
        "%s %s, schedule %s: %s %s", what, short(task.key), short(schedule.key), outcome, measurement.error
    )
    _schedule_log.debug("schedule %s: %s", short(schedule.key), schedule)
