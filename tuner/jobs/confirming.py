"""Confirming: the best schedules of each task timed beside each other, when the search is over."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

from tunewright.db.jobs import EventKind, NewEvent
from tunewright.graph.task import Task
from tunewright.search_space.measurement import NOISE, Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.workers.cold import LASTING_S, stays
from tunewright.workers.pool import ReferenceFailed
from tunewright.workers.sampling import interval

from ..units import in_ms
from .assignment import Assignment, log_trial
from .report import TaskReport
from .settled import settled
from .task_state import PACKED, TaskState, is_current, time_s

_log = logging.getLogger("tunewright")

Compared = list[tuple[Schedule, Measurement]]

COMPARED_AGAIN = 6
"""The best so many are compared once more, where more are compared with the default and the last winner: of many, the
best of a comparison is partly the luckiest in it."""

HEAD_START = 0.02
"""Part of its time that the default is ahead of all others: two comparisons of the same schedules differ by as much,
and a winner that is faster by luck alone would make its model slower. With half of it, 2 of 21 winners on one core of a
virtual machine were slower than the default when both were timed anew, by 2%."""


class Confirming:
    """Compares the finalists of each task in turn in fresh processes, so that ratios are no two trials' luck.

    Trials find constants as far away as they are in most models. Where all those of this model stay in the caches from
    run to run, finalists are judged by their times with warm caches: one that reads more constants to save arithmetic
    may be the faster one then, and the whole model slower with the other. Long runs are judged as trials are: it
    matters less to them where constants come from, and there are few samples with warm caches.

    What is `settled` is taken as it was compared before. The database keeps the choice. What other versions of the
    compiler found is among the finalists, so after an upgrade every job times old winners again. `peak_flops_s` is of
    the machine, None where it isn't known.
    """

    def __init__(self, assigned: Assignment, peak_flops_s: float | None) -> None:
        self._assigned, self._peak_flops_s = assigned, peak_flops_s
        uses = zip(assigned.states, assigned.assembly.apart, strict=True)
        self._constant_bytes = PACKED * sum(count * state.task.constant_bytes for state, count in uses)

    def run(self) -> list[TaskReport]:
        """The tasks, in their order. Raises LeaseLost, and Stopped where something else is wished."""
        claims = self._assigned.claims
        reports = {key: self._beside_peak(report) for key, report in settled(self._assigned, self._finalists).items()}
        self._assigned.tenure.tell([_told(report) for report in reports.values()])
        while left := [state for state in self._assigned.states if state.task.key not in reports]:
            for state in left:
                self._assigned.tenure.check()
                if claims.take(state) is None:
                    continue
                reports[state.task.key] = self._report(state, *self._compared(state))
                claims.release()
            if len(left) == len(self._assigned.states) - len(reports):  # others have all of them
                claims.wait()
        found = [reports[state.task.key] for state in self._assigned.states]
        times_s = [inf if report.best_s is None and report.trials else report.best_s for report in found]
        chosen = self._assigned.assembly.uses(times_s)
        return [replace(report, chosen=count) for report, count in zip(found, chosen, strict=True)]

    def _report(self, state: TaskState, compared: Compared, is_confirmed: bool = True) -> TaskReport:
        works = {schedule.key: m for schedule, m in self._judged(state, compared) if m.status is Status.OK}
        choice = self._choice(state, compared)
        schedule = choice[0] if choice is not None and choice[0].key in works else state.default
        default, best = works.get(state.default.key), works.get(schedule.key)
        report = TaskReport(
            key=state.task.key,
            op=state.task.op,
            occurrences=state.occurrences,
            chosen=state.occurrences,
            trials=len(state.measured),
            flops=state.task.flops,
            default_s=default.median_s if default else None,
            best_s=best.median_s if best else None,
            fraction_of_peak=None,
            schedule=schedule.to_json(),
            default_interval_s=_edges_s(default),
            best_interval_s=_edges_s(best),
            noise=best.provenance.get(NOISE, "") if best else "",
            is_confirmed=is_confirmed,
            default_key=state.default.key,
        )
        return self._beside_peak(report)

    def _beside_peak(self, report: TaskReport) -> TaskReport:
        peak = self._peak_flops_s
        return replace(report, fraction_of_peak=report.flops / report.best_s / peak if report.best_s and peak else None)

    def _compared(self, state: TaskState) -> tuple[Compared, bool]:
        """The finalists with their times beside each other; of many, the few best. What is chosen of them is kept.

        And whether they were compared: else the times are of trials.
        """
        assigned = self._assigned
        before = assigned.store.confirmed_many([state.task.key], assigned.target.key).get(state.task.key)
        finalists = self._finalists(state, before.schedule if before else None)
        if not before and len(finalists) < 2 and all(is_current(m.provenance, assigned.target) for _, m in finalists):
            return finalists, False
        always = {state.default} | ({before.schedule} if before else set())
        try:
            schedules = self._narrowed(state, [schedule for schedule, _ in finalists], always)
            compared = self._side_by_side(state, schedules, "comparison of task")
        except ReferenceFailed as failure:
            _log.warning("not compared: %s", failure)
            return [entry for entry in finalists if not state.fails(entry[0])], False
        if (choice := self._choice(state, compared)) is not None:
            record = Record(state.task.key, assigned.target.key, *choice)
            assigned.store.confirm(record, assigned.tenure.lease, [_told(self._report(state, compared))])
        return compared, True

    def _narrowed(
        self, state: TaskState, schedules: Sequence[Schedule], always: Collection[Schedule]
    ) -> Sequence[Schedule]:
        """What the comparison that counts is of: those of `always`, and of many others the best of a first one.

        Only what works there; all again where nothing does, so that the database comes to know it. Raises
        ReferenceFailed.
        """
        if sum(schedule not in always for schedule in schedules) <= COMPARED_AGAIN:
            return schedules
        times = self._times_s(state, self._side_by_side(state, schedules, "first comparison of task"))
        works = [schedule for schedule in schedules if schedule.key in times]
        others = [schedule for schedule in works if schedule not in always]
        best = sorted(others, key=lambda schedule: times[schedule.key])[:COMPARED_AGAIN]
        return [schedule for schedule in works if schedule in always or schedule in best] or schedules

    def _side_by_side(self, state: TaskState, schedules: Sequence[Schedule], what: str) -> Compared:
        """Schedules with their times beside each other; `what` is what the log calls it. What fails is refuted.

        Raises ReferenceFailed.
        """
        target = self._assigned.target
        measured = self._assigned.pool.compare([Candidate(state.task, target, schedule) for schedule in schedules])
        compared = list(zip(schedules, measured, strict=True))
        for schedule, measurement in compared:
            log_trial(what, state.task, schedule, measurement)
        state.refuted |= {schedule.key for schedule, measurement in compared if measurement.status is not Status.OK}
        return compared

    def _finalists(self, state: TaskState, confirmed: Schedule | None) -> Compared:
        """Some of each sketch where constants are closer than in trials: sketches differ in how many they read."""
        is_closer = state.task.constant_bytes > 0 and self._is_judged_warm(state.task, state.best_s or inf)
        return state.finalists(self._assigned.target, confirmed, of_each_sketch=is_closer)

    def _choice(self, state: TaskState, compared: Compared) -> tuple[Schedule, Measurement] | None:
        """The fastest; the default, which others have to beat, where that is as fast. None where there are none.

        As it was judged, with the time of the default beside it.
        """
        judged = self._judged(state, compared)
        times_s = {schedule.key: time_s(m) for schedule, m in judged if m.status is Status.OK}

        def rank(entry: tuple[Schedule, Measurement]) -> float:
            share = 1 - HEAD_START if entry[0] == state.default else 1.0
            return share * times_s.get(entry[0].key, inf)

        chosen = min(judged, key=rank, default=None)
        return chosen and (chosen[0], replace(chosen[1], incumbent_s=times_s.get(state.default.key)))

    def _times_s(self, state: TaskState, compared: Compared) -> dict[str, float]:
        """What a run takes in this model on each schedule that works, by the schedule's key."""
        return {schedule.key: time_s(m) for schedule, m in self._judged(state, compared) if m.status is Status.OK}

    def _judged(self, state: TaskState, compared: Compared) -> Compared:
        """The finalists with the times by which they are judged: with warm caches all of them, or none."""
        works = [m for _, m in compared if m.status is Status.OK]
        fastest_s = min(map(time_s, works), default=inf)
        if not self._is_judged_warm(state.task, fastest_s) or any(m.warm_s is None for m in works):
            return compared
        return [(schedule, _warm(m) if m.status is Status.OK else m) for schedule, m in compared]

    def _is_judged_warm(self, task: Task, fastest_s: float) -> bool:
        """Whether runs are short, and the constants are where a run of the task alone would leave them, when its turn
        comes again.
        """
        target = self._assigned.target
        is_near = stays(task.constant_bytes, self._constant_bytes, target.l2_bytes, target.l3_bytes)
        return is_near and fastest_s < LASTING_S


def _warm(measurement: Measurement) -> Measurement:
    """With its times with warm caches as those that count."""
    samples_s = measurement.warm_samples_s
    low_s, high_s = interval(samples_s)[1:] if samples_s else (None, None)
    return replace(measurement, samples_s=samples_s, median_s=measurement.warm_s, low_s=low_s, high_s=high_s)


def _edges_s(measurement: Measurement | None) -> tuple[float, float] | None:
    if measurement is None or measurement.low_s is None or measurement.high_s is None:
        return None
    return measurement.low_s, measurement.high_s


def _told(report: TaskReport) -> NewEvent:
    data = {
        "task_key": report.key,
        "op": report.op,
        "default_ms": in_ms(report.default_s),
        "best_ms": in_ms(report.best_s),
    }
    return NewEvent(EventKind.CONFIRMED, data)
