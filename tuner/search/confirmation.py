"""Confirmation: the best schedules of each task, timed side by side after the search."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

from tunewright.costmodel.roofline import peak_factor
from tunewright.db.job import NewEvent
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import ReferenceFailed

from ..known_times import KnownTimes, confirmation
from .comparison_rule import Comparison, ComparisonRule
from .context import JobContext, log_trial, recall
from .known_report import confirmed_event, task_report
from .regression import Regression
from .report import TaskReport
from .stage import JobStage
from .task_state import TaskState, time_s
from .warm_times import WarmTimes

_log = logging.getLogger("tunewright")

COMPARED_AGAIN = 6
"""The best so many are compared once more, where more are compared with the default and the last winner: of many, the
best of a comparison is partly the luckiest in it."""

HEAD_START = 0.02
"""Part of its time that the default is ahead of all others: two comparisons of the same schedules differ by as much,
and a winner that is faster by luck alone would make its model slower. With half of it, 2 of 21 winners on one core of a
virtual machine were slower than the default when both were timed anew, by 2%."""


class Confirmation:
    """Compares the finalists of each task in turn in fresh processes, so that ratios are no two trials' luck.

    Which tasks, and what of them, is what `rule` says; `warm_times` says by which times they are judged. The database
    keeps the choice. `peak_flops_s` is of the machine, None where it isn't known.
    """

    def __init__(self, context: JobContext, peak_flops_s: float | None, rule: ComparisonRule) -> None:
        self._context, self._peak_flops_s, self._rule = context, peak_flops_s, rule
        self._warm_times = WarmTimes.of(context)

    def run(self) -> list[TaskReport]:
        """The tasks, in their order. Raises LeaseLost, and JobStop where the job is to end."""
        settled = self._rule.settled()
        reports = {key: self._with_peak_fraction(known.report) for key, known in settled.items()}
        self._recall([state for state in self._context.states if state.task.key in reports])
        self._context.keeper.tell([confirmed_event(reports[key]) for key, known in settled.items() if known.is_news])
        open_keys = {state.task.key for state in self._context.states if self._rule.has_rivals(*self._field(state))}
        self._report_progress(reports, open_keys)
        while open_states := [state for state in self._context.states if state.task.key not in reports]:
            for state in open_states:
                self._context.keeper.check()
                if self._context.claim(state) is None:
                    continue
                reports[state.task.key] = self._with_peak_fraction(self._confirm(state))
                self._recall([state])
                self._context.release()
                self._report_progress(reports, open_keys)
            if len(open_states) == len(self._context.states) - len(reports):  # others have all of them
                self._context.wait()
        ordered = [reports[state.task.key] for state in self._context.states]
        times_s = [inf if report.best_s is None and report.trials else report.best_s for report in ordered]
        chosen = self._context.assembly.uses(times_s)
        return [replace(report, chosen=count) for report, count in zip(ordered, chosen, strict=True)]

    def _confirm(self, state: TaskState) -> TaskReport:
        """Compare the finalists of a task that is claimed."""
        settled = self._rule.settled_since(state)
        return settled if settled is not None else self._report(state, *self._compare_finalists(state))

    def _recall(self, states: Sequence[TaskState]) -> None:
        """What is told of these tasks from now on: as they were confirmed."""
        recall(self._context.store, self._context.target, states)

    def _report_progress(self, reports: Mapping[str, TaskReport], open_keys: Collection[str]) -> None:
        """Report how many tasks are timed side by side, of how many: those with these keys, where not done yet."""
        self._context.confirmed = sum(report.is_confirmed for report in reports.values())
        self._context.to_confirm = self._context.confirmed + sum(key not in reports for key in open_keys)
        self._context.report(JobStage.CONFIRMING)

    def _report(self, state: TaskState, compared: Comparison, is_confirmed: bool = True) -> TaskReport:
        choice = self._choice(state, compared)
        schedule, times = state.default, KnownTimes(None, None)
        if choice is not None and choice[1].status is Status.OK:
            schedule, times = choice[0], KnownTimes.of_confirmation(choice[1], self._context.target)
        report = task_report(state, schedule, times, is_confirmed)
        return self._rule.judge(state, report) if is_confirmed else report

    def _with_peak_fraction(self, report: TaskReport) -> TaskReport:
        tasks = {state.task.key: state.task for state in self._context.states}
        factor = peak_factor(tasks[report.key], self._context.target)
        peak = self._peak_flops_s and self._peak_flops_s * factor
        return replace(report, fraction_of_peak=report.flops / report.best_s / peak if report.best_s and peak else None)

    def _compare_finalists(self, state: TaskState) -> tuple[Comparison, bool]:
        """The finalists with their times side by side; of many, the few best. The database keeps the choice.

        And whether they were compared: else the times are of trials.
        """
        context = self._context
        finalists, before = self._field(state)
        if not self._rule.has_rivals(finalists, before):
            return finalists, False
        always = {state.default} | ({before} if before else set())
        try:
            schedules = self._narrow(state, [schedule for schedule, _ in finalists], always)
            compared = self._compare(state, schedules, "comparison of task")
        except ReferenceFailed as failure:
            _log.warning("not compared: %s", failure)
            return [entry for entry in finalists if not state.fails(entry[0])], False
        if (choice := self._choice(state, compared)) is not None:
            record = Record(state.task.key, context.target.key, *choice)
            events = [confirmed_event(self._report(state, compared)), *self._regressions(state, choice[1])]
            context.store.confirm(record, context.keeper.lease, events)
        return compared, True

    def _regressions(self, state: TaskState, measurement: Measurement) -> list[NewEvent]:
        """The event that tells of a task's regression from its last confirmation to this one, if it is one.

        The claim on the task keeps other jobs from confirming it in between.
        """
        key = state.task.key
        before = self._context.store.comparisons([key], self._context.target.key).get(key)
        regression = Regression.between(before, measurement)
        return [] if regression is None else [regression.event(key, state.task.op)]

    def _field(self, state: TaskState) -> tuple[Comparison, Schedule | None]:
        """The finalists of a task, and the schedule that was confirmed last."""
        key = state.task.key
        record = self._context.store.confirmations([key], self._context.target.key).get(key)
        before = record.schedule if record else None
        return self._rule.finalists(state, before), before

    def _narrow(
        self, state: TaskState, schedules: Sequence[Schedule], always: Collection[Schedule]
    ) -> Sequence[Schedule]:
        """The schedules of the final comparison: those of `always`, and of many others the best of a first comparison.

        Only those that work; all again where none does, so that the database records it. Raises
        ReferenceFailed.
        """
        if sum(schedule not in always for schedule in schedules) <= COMPARED_AGAIN:
            return schedules
        compared = self._compare(state, schedules, "first comparison of task")
        judged = self._warm_times.judge(state.task, compared)
        times = {schedule.key: time_s(m) for schedule, m in judged if m.status is Status.OK}
        works = [schedule for schedule in schedules if schedule.key in times]
        others = [schedule for schedule in works if schedule not in always]
        best = sorted(others, key=lambda schedule: times[schedule.key])[:COMPARED_AGAIN]
        return [schedule for schedule in works if schedule in always or schedule in best] or schedules

    def _compare(self, state: TaskState, schedules: Sequence[Schedule], what: str) -> Comparison:
        """Schedules with their times side by side; `what` names the comparison in the log. Failing ones are refuted.

        Raises ReferenceFailed.
        """
        target = self._context.target
        measured = self._context.pool.compare([Candidate(state.task, target, schedule) for schedule in schedules])
        compared = list(zip(schedules, measured, strict=True))
        for schedule, measurement in compared:
            log_trial(what, state.task, schedule, measurement)
        state.refuted |= {schedule.key for schedule, measurement in compared if measurement.status is not Status.OK}
        return compared

    def _choice(self, state: TaskState, compared: Comparison) -> tuple[Schedule, Measurement] | None:
        """The fastest schedule; the default where that is as fast. None where there are none.

        With the measurement that counts, and the time of the default beside it.
        """
        judged = self._warm_times.judge(state.task, compared)
        works = {schedule.key: m for schedule, m in judged if m.status is Status.OK}

        def rank(entry: tuple[Schedule, Measurement]) -> float:
            share = 1 - HEAD_START if entry[0] == state.default else 1.0
            return share * time_s(works[entry[0].key]) if entry[0].key in works else inf

        chosen = min(judged, key=rank, default=None)
        return chosen and (chosen[0], confirmation(chosen[1], works.get(state.default.key)))
