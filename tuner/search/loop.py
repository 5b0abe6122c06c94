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
from tunewright.search_space.measurement import Candidate, Measurement, Record
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import ReferenceFailed

from ..known_times import KnownDefault, KnownTimes
from ..noise import noise_of_measurement, total_noise
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
        self._context, self._learning = context, learning
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
        while not (ended := self._end()):
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

    def _end(self) -> SearchEnd | None:
        """The reason to end here, if there is one, by the budget of this moment: people may just have raised it."""
        self._context.take_budget()
        ended = self._budget_end() or self._gain_end()
        if ended in (SearchEnd.TRIALS, SearchEnd.MINUTES):
            self._context.keeper.tell()
            self._context.take_budget()
            ended = self._budget_end() or self._gain_end()
        return ended

    def try_defaults(self, numbers: Sequence[int]) -> None:
        """Try the defaults of these tasks, by their numbers, which were not tried yet. Raises as `run` does."""
        for number in numbers:
            while not self._is_default_tried(number) and not self._round(number, 1):
                self._context.wait()

    def _is_default_tried(self, number: int) -> bool:
        """Whether the default of a task was measured by now, by whichever job."""
        state, target = self._context.states[number], self._context.target
        return state.default.key in self._context.store.schedule_keys(state.task.key, target.key)

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
        until = self._context.job.budget.until
        return SearchEnd.UNTIL if until is not None and forecast.is_below(until) else None

    def _round(self, index: int, size: int) -> bool:
        """Give a task so many trials; False where another job has it."""
        start, measured_s = time.monotonic(), self._measured_s
        state = self._context.states[index]
        self._learning.refit(self._context.states)  # before the claim: others may have their turn meanwhile
        before_s = state.times.default_s, state.times.best_s
        fresh = self._context.claim(state)
        if fresh is not None:
            if (state.times.default_s, state.times.best_s) != before_s:
                self._context.keeper.tell(self._news(state))
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
                context.take_budget()
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
        """Report the tasks whose default was measured before the job, or whose best is known."""
        times = [(state, state.times) for state in self._context.states]
        known = [(state, one) for state, one in times if one.default_s is not None or one.best_s is not None]
        self._default_keys = {state.task.key for state, one in known if one.default_s is not None}
        if known and not self._context.own:  # else the process before this one has told them, or their trials did
            self._context.keeper.tell([_default_event(*one) for one in known])

    def _news(self, state: TaskState) -> list[NewEvent]:
        """What other jobs have found, or confirmed, of a task meanwhile."""
        if state.times.is_confirmed:
            if state.times.default_s is not None:
                self._default_keys.add(state.task.key)
            return [_default_event(state, state.times)]
        if state.found is None or state.found[0] == state.default:
            return []
        return [self._improved_event(state, state.found[1], None)]

    def _default(self, state: TaskState, schedule: Schedule, measurement: Measurement) -> list[NewEvent]:
        """The event, where the default is known with this trial, or was found out by another job."""
        is_default = schedule == state.default
        default = KnownDefault.beside_trial(measurement, state.compared) if is_default else state.default_time
        if default.time_s is None or state.task.key in self._default_keys:
            return []
        self._default_keys.add(state.task.key)
        found = measurement if is_default and state.improves(measurement) else state.found and state.found[1]
        return [_default_event(state, KnownTimes.of_trial(found, default) if found else state.times)]

    def _improvement(self, state: TaskState, schedule: Schedule, measurement: Measurement) -> list[NewEvent]:
        """The event, where this is the best from now on; the default is what others improve on."""
        if not state.improves(measurement) or schedule == state.default:
            return []
        return [self._improved_event(state, measurement, self._context.own)]

    def _improved_event(self, state: TaskState, measurement: Measurement, trial: int | None) -> NewEvent:
        """The event of an improvement by a trial of the job, or, where it is None, of another job."""
        state.apart_noise = total_noise(self._noises)
        return NewEvent(
            EventKind.IMPROVED,
            {
                "task_key": state.task.key,
                "op": state.task.op,
                **state.times_of(measurement).to_json(),
                "noise": noise_of_measurement(measurement),
                "default_confirmed": state.default_time.is_confirmed,
                "default_noise": state.default_time.noise,
                "apart_noise": state.apart_noise,
                "trial": trial,
            },
        )


def _default_event(state: TaskState, times: KnownTimes) -> NewEvent:
    """What is known of a task besides what the job tries."""
    data: dict[str, object] = {"task_key": state.task.key, "op": state.task.op, **times.to_json()}
    data["default_confirmed"] = times.is_default_confirmed
    if times.is_confirmed:
        data["confirmed"] = times.to_json()
    return NewEvent(EventKind.DEFAULT, data)
