"""Search: spends a job's budget. Read `Search.run` first.

scheduler picks a task, which is claimed -> strategy proposes schedules, the cost model ranking them
-> pool builds, checks and times -> store keeps each measurement at once -> strategy and cost model learn
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing

from tunewright.costmodel.roofline import floor_s
from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import ReferenceFailed

from ..noise import noise_of_measurement, total_noise
from ..units import in_ms
from .context import JobContext, log_trial, trials_of
from .learning import Learning
from .report import SearchEnd
from .scheduling.scheduler import TaskScheduler
from .stage import JobStage
from .task_state import TaskState, time_s

_log = logging.getLogger("tunewright")

RECENT = 8
"""Trials that tell whether the machine is busy by now: a single one is too short to say so of itself."""


class Search:
    """Spends the budget of a job, and reports each trial of this process."""

    def __init__(self, context: JobContext, learning: Learning) -> None:
        self._context, self._learning, self._budget = context, learning, context.job.budget
        self._measured_s = 0.0
        self._default_keys: set[str] = set()  # keys of tasks whose default was told
        self._noises: deque[str] = deque(maxlen=RECENT)  # of the newest trials, of any task
        self._scheduler = TaskScheduler(
            context.assembly,
            [floor_s(state.task, context.target) for state in context.states],
            [[time_s(m) for _, m in state.measured.values()] for state in context.states],
            [state.task.family for state in context.states],
        )

    def run(self) -> SearchEnd:
        """Search until the budget or all tasks are spent; which of these it was.

        Raises LeaseLost, and JobStop where the job is to end.
        """
        self._tell_defaults()
        busy: set[int] = set()  # tasks that other jobs are at
        while not (ended := self._budget_end() or self._gain_end()):
            self._context.keeper.check()
            batch = self._scheduler.next_batch(self._context.trials_left, busy)
            if batch is None:  # other jobs are at all that have something left to try
                self._context.wait()
                busy.clear()
                continue
            if self._round(*batch):
                busy.clear()
            else:
                busy.add(batch[0])
        return ended

    def _budget_end(self) -> SearchEnd | None:
        if self._context.trials_left <= 0:
            return SearchEnd.TRIALS
        return SearchEnd.MINUTES if self._context.seconds_left <= 0 else None

    def _gain_end(self) -> SearchEnd | None:
        """The end of the search where nothing is left to try, or the expected gain is below the budget's; else None."""
        for index, state in enumerate(self._context.states):
            self._scheduler.promise(index, state.strategy.promise())
        self._context.forecast = forecast = self._scheduler.forecast()
        if forecast is None:
            return None
        if not forecast.tasks:
            return SearchEnd.EXHAUSTED
        until = self._budget.until
        return SearchEnd.UNTIL if until is not None and forecast.is_below(until) else None

    def _round(self, index: int, size: int) -> bool:
        """Give a task so many trials; False where another job has it."""
        start, measured_s = time.monotonic(), self._measured_s
        state = self._context.states[index]
        self._learning.refit(self._context.states)  # before the claim: others may have their turn meanwhile
        best = state.best
        fresh = self._context.claim(state)
        if fresh is not None:
            if state.best is not best and state.best is not None and state.best[0] != state.default:  # by another job
                self._context.keeper.tell([self._improved_event(state, state.best[1], None)])
            self._scheduler.add(index, [time_s(measurement) for measurement in fresh])
            self._learning.note(len(fresh))
            self._try(index, size)
            self._context.release()
            self._scheduler.pace.note_round(time.monotonic() - start - (self._measured_s - measured_s))
        return fresh is not None

    def _try(self, index: int, size: int) -> None:
        """Measure so many more schedules of a task, which is claimed."""
        schedules = self._context.states[index].ask(size)
        if not schedules:
            self._scheduler.exhaust(index)
            return
        try:
            self._measure(index, schedules)
        except ReferenceFailed as failure:  # of the task, not of its candidates: the others go on
            _log.warning("not tuned: %s", failure)
            self._scheduler.exhaust(index)

    def _measure(self, index: int, schedules: Sequence[Schedule]) -> None:
        state, context = self._context.states[index], self._context
        candidates = [Candidate(state.task, context.target, schedule) for schedule in schedules]
        with closing(context.pool.measure(candidates, state.best_s)) as results:
            start = time.monotonic()
            for candidate, measurement in results:
                self._keep(index, candidate.schedule, measurement)
                seconds, start = time.monotonic() - start, time.monotonic()
                self._measured_s += seconds
                self._scheduler.pace.note(index, 1, seconds)
                context.keeper.check()
                if self._budget_end() or not context.keeper.is_sure:  # then the claim may be another job's
                    return

    def _keep(self, index: int, schedule: Schedule, measurement: Measurement) -> None:
        state, context = self._context.states[index], self._context
        log_trial("task", state.task, schedule, measurement)
        record = Record(state.task.key, context.target.key, schedule, measurement)
        self._noises.append(noise_of_measurement(measurement))
        events = [*self._default(state, schedule, measurement), *self._improvement(state, schedule, measurement)]
        is_new = context.store.record(record, context.keeper.lease, events)
        state.tell(schedule, measurement)
        self._scheduler.add(index, [time_s(measurement)])
        self._learning.note(1)
        # One that was stored already may be our own, where the database went away in the middle of it.
        if is_new:
            context.own_of[state.task.key] += 1
        else:
            context.own_of = trials_of(context.store, context.job.id)
        context.report(JobStage.SEARCHING, (state, schedule, measurement))

    def _tell_defaults(self) -> None:
        """Report the tasks whose default was measured before the job."""
        known = [state for state in self._context.states if state.default_s is not None]
        self._default_keys = {state.task.key for state in known}
        if known and not self._context.own:  # else the process before this one has told them, or their trials did
            self._context.keeper.tell(
                [_default_event(state, state.default_s, state.best_s, state.default_noise) for state in known]
            )

    def _default(self, state: TaskState, schedule: Schedule, measurement: Measurement) -> list[NewEvent]:
        """The event, where the default is known with this trial, or was found out by another job."""
        default_s = measurement.median_s if schedule == state.default else state.default_s
        if default_s is None or state.task.key in self._default_keys:
            return []
        self._default_keys.add(state.task.key)
        noise = noise_of_measurement(measurement) if schedule == state.default else state.default_noise
        return [_default_event(state, default_s, min(default_s, state.best_s or default_s), noise)]

    def _improvement(self, state: TaskState, schedule: Schedule, measurement: Measurement) -> list[NewEvent]:
        """The event, where this is faster than all before; the default is what others improve on."""
        better = measurement.status is Status.OK and (state.best is None or time_s(measurement) < time_s(state.best[1]))
        if not better or schedule == state.default:
            return []
        return [self._improved_event(state, measurement, self._context.own)]

    def _improved_event(self, state: TaskState, measurement: Measurement, trial: int | None) -> NewEvent:
        """The event of an improvement by a trial of the job, or, where it is None, of another job."""
        state.apart_noise = total_noise(self._noises)
        data = {
            "task_key": state.task.key,
            "op": state.task.op,
            "best_ms": 1e3 * time_s(measurement),
            "best_interval_ms": [in_ms(measurement.low_s), in_ms(measurement.high_s)],
            "noise": noise_of_measurement(measurement),
            "default_ms": in_ms(state.default_s),
            "default_noise": state.default_noise,
            "apart_noise": state.apart_noise,
            "trial": trial,
        }
        return NewEvent(EventKind.IMPROVED, data)


def _default_event(state: TaskState, default_s: float | None, best_s: float | None, noise: str) -> NewEvent:
    """`noise` is that of the default; that of the best known counts too."""
    data: dict[str, object] = {
        "task_key": state.task.key,
        "op": state.task.op,
        "default_ms": in_ms(default_s),
        "best_ms": in_ms(best_s),
        "noise": noise or state.best_noise,
    }
    if (confirmed := state.times).is_confirmed:
        data["confirmed"] = confirmed.to_json()
    return NewEvent(EventKind.DEFAULT, data)
