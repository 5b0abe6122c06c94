"""Confirming: the best schedules of each task timed beside each other, when the search is over."""

from __future__ import annotations

import logging
from dataclasses import replace
from math import inf

from tunewright.db.jobs import EventKind, NewEvent
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import ReferenceFailed

from ..units import in_ms
from .report import TaskReport
from .search import Assignment, log_trial
from .task_state import TaskState, is_current, time_s

_log = logging.getLogger("tunewright")

Compared = list[tuple[Schedule, Measurement]]


class Confirming:
    """Compares the finalists of each task in turn in a fresh process, so that ratios are no two trials' luck.

    The database keeps the choice. What was found by other versions of the compiler is among the finalists, so after an
    upgrade every job times old winners again. `peak_flops_s` is of the machine, None where it isn't known.
    """

    def __init__(self, assigned: Assignment, peak_flops_s: float | None) -> None:
        self._assigned, self._peak_flops_s = assigned, peak_flops_s

    def run(self) -> list[TaskReport]:
        """The tasks, in their order. Raises LeaseLost, and Stopped where something else is wished."""
        claims = self._assigned.claims
        reports: dict[str, TaskReport] = {}
        while left := [state for state in self._assigned.states if state.task.key not in reports]:
            for state in left:
                self._assigned.tenure.check()
                if claims.take(state) is None:
                    continue
                reports[state.task.key] = self._report(state, self._compared(state))
                claims.release()
            if len(left) == len(self._assigned.states) - len(reports):  # others have all of them
                claims.wait()
        found = [reports[state.task.key] for state in self._assigned.states]
        times_s = [inf if report.best_s is None and report.trials else report.best_s for report in found]
        chosen = self._assigned.assembly.uses(times_s)
        return [replace(report, chosen=count) for report, count in zip(found, chosen, strict=True)]

    def _report(self, state: TaskState, compared: Compared) -> TaskReport:
        times = {s.key: m.median_s for s, m in compared if m.status is Status.OK}
        holding = [schedule for schedule, _ in compared if schedule.key in times]
        schedule = min(holding, key=lambda s: times[s.key] or inf, default=state.default)
        best_s, peak = times.get(schedule.key), self._peak_flops_s
        return TaskReport(
            key=state.task.key,
            op=state.task.op,
            occurrences=state.occurrences,
            chosen=state.occurrences,
            trials=len(state.measured),
            flops=state.task.flops,
            default_s=times.get(state.default.key),
            best_s=best_s,
            fraction_of_peak=state.task.flops / best_s / peak if best_s and peak else None,
            schedule=schedule.to_json(),
        )

    def _compared(self, state: TaskState) -> Compared:
        """The finalists with their times beside each other."""
        assigned = self._assigned
        before = assigned.store.confirmed_many([state.task.key], assigned.target.key).get(state.task.key)
        finalists = state.finalists(assigned.target, before.schedule if before else None)
        if not before and len(finalists) < 2 and all(is_current(m.provenance) for _, m in finalists):
            return finalists
        schedules = [schedule for schedule, _ in finalists]
        try:
            measured = assigned.pool.compare(
                [Candidate(state.task, assigned.target, schedule) for schedule in schedules]
            )
        except ReferenceFailed as failure:
            _log.warning("not compared: %s", failure)
            return finalists
        compared = list(zip(schedules, measured, strict=True))
        for schedule, measurement in compared:
            log_trial("comparison of task", state.task, schedule, measurement)
        state.refuted |= {schedule.key for schedule, measurement in compared if measurement.status is not Status.OK}
        self._keep(state, compared)
        return compared

    def _keep(self, state: TaskState, compared: Compared) -> None:
        choice = min(compared, key=lambda entry: (entry[1].status is not Status.OK, time_s(entry[1])), default=None)
        if choice is None:
            return
        times = {schedule.key: m.median_s for schedule, m in compared if m.status is Status.OK}
        data = {
            "task_key": state.task.key,
            "op": state.task.op,
            "default_ms": in_ms(times.get(state.default.key)),
            "best_ms": in_ms(times.get(choice[0].key)),
        }
        record = Record(state.task.key, self._assigned.target.key, *choice)
        self._assigned.store.confirm(record, self._assigned.tenure.lease, [NewEvent(EventKind.CONFIRMED, data)])
