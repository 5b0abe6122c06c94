"""Search: spends a job's budget. Read `Search.run` first.

scheduler picks a task, which is claimed -> strategy proposes schedules, the cost model ranking them
-> pool builds, checks and times -> store keeps each measurement at once -> strategy and cost model learn
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from tunewright.costmodel.roofline import floor_s
from tunewright.db.jobs import Budget, EventKind, NewEvent
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import ReferenceFailed

from ..units import in_ms
from .assignment import Assignment, log_trial
from .learning import Learning
from .report import Ended
from .scheduling.forecast import Forecast
from .scheduling.scheduler import TaskScheduler
from .task_state import TaskState, time_s

_log = logging.getLogger("tunewright")


class Search:
    """Spends the budget of a job, of whose trials `own` were spent before. `is_over` says that there is no more time.

    `watch` is told of each trial of this process.
    """

    def __init__(
        self,
        assigned: Assignment,
        learning: Learning,
        budget: Budget,
        own: int,
        is_over: Callable[[], bool],
        watch: Callable[[TaskState, Schedule, Measurement], None],
    ) -> None:
        self._assigned, self._learning, self._budget, self._is_over, self._watch = (
            assigned,
            learning,
            budget,
            is_over,
            watch,
        )
        self.own = own  # trials of the job so far
        self.forecast: Forecast | None = None  # as of the begin of this round; None where there is none (yet)
        self._measured_s = 0.0
        self._told: set[str] = set()  # keys of tasks whose default was told
        self._scheduler = TaskScheduler(
            assigned.assembly,
            [floor_s(state.task, assigned.target) for state in assigned.states],
            [[time_s(m) for _, m in state.measured.values()] for state in assigned.states],
            [state.task.family for state in assigned.states],
        )

    def run(self) -> Ended:
        """Search until the budget or all tasks are spent; which of these it was.

        Raises LeaseLost, and Stopped where something else is wished.
        """
        self._tell_defaults()
        taken: set[int] = set()  # tasks that other jobs are at
        while not (ended := self._spent() or self._gained()):
            self._assigned.tenure.check()
            batch = self._scheduler.next_batch(self._budget.trials_left(self.own), taken)
            if batch is None and not taken:
                return Ended.EXHAUSTED
            if batch is None:
                self._assigned.claims.wait()
                taken.clear()
                continue
            if self._round(*batch):
                taken.clear()
            else:
                taken.add(batch[0])
        return ended

    def _spent(self) -> Ended | None:
        if self._budget.trials_left(self.own) <= 0:
            return Ended.TRIALS
        return Ended.MINUTES if self._is_over() else None

    def _gained(self) -> Ended | None:
        """Whether too little more is expected, as things stand."""
        for index, state in enumerate(self._assigned.states):
            self._scheduler.promise(index, state.strategy.promise())
        self.forecast, until = self._scheduler.forecast(), self._budget.until
        return Ended.UNTIL if self.forecast and until is not None and self.forecast.is_below(until) else None

    def _round(self, index: int, size: int) -> bool:
        """Give a task so many trials; False where another job has it."""
        begun, measured_s = time.monotonic(), self._measured_s
        claims, state = self._assigned.claims, self._assigned.states[index]
        self._learning.refit(self._assigned.states)  # before the claim: others may have their turn meanwhile
        fresh = claims.take(state)
        if fresh is not None:
            self._scheduler.add(index, [time_s(measurement) for measurement in fresh])
            self._learning.note(len(fresh))
            self._try(index, size)
            claims.release()
            self._scheduler.pace.note_round(time.monotonic() - begun - (self._measured_s - measured_s))
        return fresh is not None

    def _try(self, index: int, size: int) -> None:
        """Measure so many more schedules of a task, which is claimed."""
        schedules = self._assigned.states[index].ask(size)
        if not schedules:
            self._scheduler.exhaust(index)
            return
        try:
            self._measure(index, schedules)
        except ReferenceFailed as failure:  # of the task, not of its candidates: the others go on
            _log.warning("not tuned: %s", failure)
            self._scheduler.exhaust(index)

    def _measure(self, index: int, schedules: Sequence[Schedule]) -> None:
        state, assigned = self._assigned.states[index], self._assigned
        candidates = [Candidate(state.task, assigned.target, schedule) for schedule in schedules]
        with closing(assigned.pool.measure(candidates, state.best_s)) as results:
            begun = time.monotonic()
            for candidate, measurement in results:
                self._keep(index, candidate.schedule, measurement)
                seconds, begun = time.monotonic() - begun, time.monotonic()
                self._measured_s += seconds
                self._scheduler.pace.note(index, 1, seconds)
                assigned.tenure.check()
                if self._spent() or not assigned.tenure.is_sure:  # then the claim may be another job's
                    return

    def _keep(self, index: int, schedule: Schedule, measurement: Measurement) -> None:
        state, assigned = self._assigned.states[index], self._assigned
        log_trial("task", state.task, schedule, measurement)
        record = Record(state.task.key, assigned.target.key, schedule, measurement)
        events = [*self._default(state, schedule, measurement), *self._improvement(state, schedule, measurement)]
        is_new = assigned.store.record(record, assigned.tenure.lease, events)
        state.tell(schedule, measurement)
        self._scheduler.add(index, [time_s(measurement)])
        self._learning.note(1)
        # One that was stored already may be our own, where the database went away in the middle of it.
        self.own = self.own + 1 if is_new else sum(assigned.store.jobs.statuses(assigned.tenure.lease.job_id).values())
        self._watch(state, schedule, measurement)

    def _tell_defaults(self) -> None:
        """Tell of the tasks whose default was measured before the job."""
        known = [state for state in self._assigned.states if state.default_s is not None]
        self._told = {state.task.key for state in known}
        if known and not self.own:  # else the process before this one has told them, or their trials did
            self._assigned.tenure.tell([_default_event(state, state.default_s, state.best_s) for state in known])

    def _default(self, state: TaskState, schedule: Schedule, measurement: Measurement) -> list[NewEvent]:
        """The event, where the default is known with this trial, or was found out by another job."""
        default_s = measurement.median_s if schedule == state.default else state.default_s
        if default_s is None or state.task.key in self._told:
            return []
        self._told.add(state.task.key)
        return [_default_event(state, default_s, min(default_s, state.best_s or default_s))]

    def _improvement(self, state: TaskState, schedule: Schedule, measurement: Measurement) -> list[NewEvent]:
        """The event, where this is faster than all before; the default is what others improve on."""
        better = measurement.status is Status.OK and (state.best is None or time_s(measurement) < time_s(state.best[1]))
        if not better or schedule == state.default:
            return []
        data = {
            "task_key": state.task.key,
            "op": state.task.op,
            "best_ms": 1e3 * time_s(measurement),
            "default_ms": in_ms(state.default_s),
            "trial": self.own,
        }
        return [NewEvent(EventKind.IMPROVED, data)]


def _default_event(state: TaskState, default_s: float | None, best_s: float | None) -> NewEvent:
    data = {"task_key": state.task.key, "op": state.task.op, "default_ms": in_ms(default_s), "best_ms": in_ms(best_s)}
    return NewEvent(EventKind.DEFAULT, data)
