"""Confirmation: the best schedules of each task, timed side by side after the search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf, isclose

from tunewright.codegen.codec import from_json
from tunewright.codegen.target import Target
from tunewright.costmodel.roofline import peak_factor
from tunewright.db.job import EventKind, JobState, NewEvent
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.workers.measure.cache_flush import LASTING_S, is_warm_in_model
from tunewright.workers.measure.sampling import interval
from tunewright.workers.pool import ReferenceFailed

from ..known_times import TIME_FIELDS, KnownTimes, confirmation, is_current
from .context import JobContext, log_trial, recall
from .regression import Regression
from .report import Report, TaskReport
from .retiming import Retiming
from .stage import JobStage
from .task_state import PACKED, TaskState, time_s

_log = logging.getLogger("tunewright")

Comparison = list[tuple[Schedule, Measurement]]

COMPARED_AGAIN = 6
"""The best so many are compared once more, where more are compared with the default and the last winner: of many, the
best of a comparison is partly the luckiest in it."""

HEAD_START = 0.02
"""Part of its time that the default is ahead of all others: two comparisons of the same schedules differ by as much,
and a winner that is faster by luck alone would make its model slower. With half of it, 2 of 21 winners on one core of a
virtual machine were slower than the default when both were timed anew, by 2%."""


class Confirmation:
    """Compares the finalists of each task in turn in fresh processes, so that ratios are no two trials' luck.

    Trials find constants as far away as they are in most models. Where all those of this model stay in the caches from
    run to run, finalists are judged by their times with warm caches: one that reads more constants to save arithmetic
    may be the faster one then, and the whole model slower with the other. Long runs are judged as trials are: it
    matters less to them where constants come from, and there are few samples with warm caches.

    What is unchanged is taken as it was compared before. The database keeps the choice. What other versions of the
    compiler found is among the finalists, so after an upgrade every job times old winners again. `peak_flops_s` is of
    the machine, None where it isn't known. With `retiming` only stale tasks are compared, and what it says of them.
    """

    def __init__(self, context: JobContext, peak_flops_s: float | None, retiming: Retiming | None = None) -> None:
        self._context, self._peak_flops_s, self._retiming = context, peak_flops_s, retiming
        uses = zip(context.states, context.assembly.separate_uses, strict=True)
        self._constant_bytes = PACKED * sum(count * state.task.constant_bytes for state, count in uses)

    def run(self) -> list[TaskReport]:
        """The tasks, in their order. Raises LeaseLost, and JobStop where the job is to end."""
        settled = self._settled()
        reports = {key: self._with_peak_fraction(known.report) for key, known in settled.items()}
        self._recall([state for state in self._context.states if state.task.key in reports])
        self._context.keeper.tell([_confirmed_event(reports[key]) for key, known in settled.items() if known.is_news])
        open_keys = {state.task.key for state in self._context.states if self._has_rivals(*self._field(state))}
        self._report_progress(reports, open_keys)
        while open_states := [state for state in self._context.states if state.task.key not in reports]:
            for state in open_states:
                self._context.keeper.check()
                if self._context.claim(state) is None:
                    continue
                reports[state.task.key] = self._confirm(state)
                self._recall([state])
                self._context.release()
                self._report_progress(reports, open_keys)
            if len(open_states) == len(self._context.states) - len(reports):  # others have all of them
                self._context.wait()
        ordered = [reports[state.task.key] for state in self._context.states]
        times_s = [inf if report.best_s is None and report.trials else report.best_s for report in ordered]
        chosen = self._context.assembly.uses(times_s)
        return [replace(report, chosen=count) for report, count in zip(ordered, chosen, strict=True)]

    def _settled(self) -> dict[str, KnownReport]:
        """The reports of tasks that need not be compared, by key."""
        if self._retiming is None:
            return unchanged_reports(self._context, self._finalists)
        stale = self._retiming.stale_of(self._context.states)
        return self._known_reports([s for s in self._context.states if s.task.key not in stale], self._retiming)

    def _known_reports(self, states: Sequence[TaskState], retiming: Retiming) -> dict[str, KnownReport]:
        """The reports of tasks that are not stale, or not any more since this job has confirmed them, by key."""
        keys = [state.task.key for state in states]
        best = self._context.store.best_many(keys, self._context.target.key)
        return {state.task.key: self._known_report(state, best.get(state.task.key), retiming) for state in states}

    def _known_report(self, state: TaskState, best: Record | None, retiming: Retiming) -> KnownReport:
        schedule = state.default if best is None else best.schedule
        report = self._task_report(state, schedule, state.times, state.times.is_confirmed)
        retimed, at = retiming.earlier(state.task.key)
        return KnownReport(replace(report, retimed=retimed), at)

    def _confirm(self, state: TaskState) -> TaskReport:
        """Compare the finalists of a task that is claimed."""
        if self._retiming is not None and not self._retiming.is_stale(state):  # another job has confirmed it just now
            return self._known_reports([state], self._retiming)[state.task.key].report
        return self._report(state, *self._compare_finalists(state))

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
        report = self._task_report(state, schedule, times, is_confirmed)
        return self._retiming.judge(state, report) if self._retiming is not None and is_confirmed else report

    def _task_report(self, state: TaskState, schedule: Schedule, times: KnownTimes, is_confirmed: bool) -> TaskReport:
        report = TaskReport(
            key=state.task.key,
            op=state.task.op,
            occurrences=state.occurrences,
            chosen=state.occurrences,
            trials=len(state.measured),
            flops=state.task.flops,
            default_s=times.default_s,
            best_s=times.best_s,
            fraction_of_peak=None,
            schedule=schedule.to_json(),
            default_interval_s=times.default_interval_s,
            best_interval_s=times.best_interval_s,
            noise=times.noise,
            is_confirmed=is_confirmed,
            default_key=state.default.key,
        )
        return self._with_peak_fraction(report)

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
        if not self._has_rivals(finalists, before):
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
            events = [_confirmed_event(self._report(state, compared)), *self._regressions(state, choice[1])]
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
        return self._finalists(state, before), before

    def _has_rivals(self, finalists: Comparison, before: Schedule | None) -> bool:
        """Whether there is something to compare: a choice, or what was timed by an old compiler or chosen before."""
        if self._retiming is not None:
            return bool(finalists)
        is_old = any(not is_current(m.provenance, self._context.target) for _, m in finalists)
        return before is not None or len(finalists) > 1 or is_old

    def _narrow(
        self, state: TaskState, schedules: Sequence[Schedule], always: Collection[Schedule]
    ) -> Sequence[Schedule]:
        """The schedules of the final comparison: those of `always`, and of many others the best of a first comparison.

        Only those that work; all again where none does, so that the database records it. Raises
        ReferenceFailed.
        """
        if sum(schedule not in always for schedule in schedules) <= COMPARED_AGAIN:
            return schedules
        times = self._times_s(state, self._compare(state, schedules, "first comparison of task"))
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

    def _finalists(self, state: TaskState, confirmed: Schedule | None) -> Comparison:
        """Finalists of each sketch where constants are closer than in trials: sketches differ in how many they read."""
        if self._retiming is not None:
            return self._retiming.finalists(state, confirmed)
        is_closer = state.task.constant_bytes > 0 and self._is_judged_warm(state.task, state.best_s or inf)
        return state.finalists(self._context.target, confirmed, of_each_sketch=is_closer)

    def _choice(self, state: TaskState, compared: Comparison) -> tuple[Schedule, Measurement] | None:
        """The fastest schedule; the default where that is as fast. None where there are none.

        With the measurement that counts, and the time of the default beside it.
        """
        judged = self._judge(state, compared)
        works = {schedule.key: m for schedule, m in judged if m.status is Status.OK}

        def rank(entry: tuple[Schedule, Measurement]) -> float:
            share = 1 - HEAD_START if entry[0] == state.default else 1.0
            return share * time_s(works[entry[0].key]) if entry[0].key in works else inf

        chosen = min(judged, key=rank, default=None)
        return chosen and (chosen[0], confirmation(chosen[1], works.get(state.default.key)))

    def _times_s(self, state: TaskState, compared: Comparison) -> dict[str, float]:
        """Seconds of each schedule that works, as it runs in this model, by its key."""
        return {schedule.key: time_s(m) for schedule, m in self._judge(state, compared) if m.status is Status.OK}

    def _judge(self, state: TaskState, compared: Comparison) -> Comparison:
        """The finalists with the times that count: with warm caches for all of them, or for none."""
        works = [m for _, m in compared if m.status is Status.OK]
        fastest_s = min(map(time_s, works), default=inf)
        if not self._is_judged_warm(state.task, fastest_s) or any(m.warm_s is None for m in works):
            return compared
        return [(schedule, _with_warm_times(m) if m.status is Status.OK else m) for schedule, m in compared]

    def _is_judged_warm(self, task: Task, fastest_s: float) -> bool:
        """Whether runs are short, and the constants stay in the caches from one run of the model to the next."""
        target = self._context.target
        is_near = is_warm_in_model(task.constant_bytes, self._constant_bytes, target.l2_bytes, target.l3_bytes)
        return is_near and fastest_s < LASTING_S


def _with_warm_times(measurement: Measurement) -> Measurement:
    """The measurement with its times with warm caches as those that count."""
    samples_s = measurement.warm_samples_s
    low_s, high_s = interval(samples_s)[1:] if samples_s else (None, None)
    return replace(measurement, samples_s=samples_s, median_s=measurement.warm_s, low_s=low_s, high_s=high_s)


EVENT_FIELDS = ("op", *TIME_FIELDS)
"""Fields of a task's report in the event of its confirmation."""

RETIMED = "retimed"
"""Another one, where the task was stale."""


def _confirmed_event(report: TaskReport) -> NewEvent:
    data = report.to_json()
    told = {name: data[name] for name in EVENT_FIELDS} | ({RETIMED: data[RETIMED]} if report.retimed else {})
    return NewEvent(EventKind.CONFIRMED, {"task_key": report.key} | told)


Finalists = Callable[[TaskState, Schedule | None], Sequence[tuple[Schedule, Measurement]]]
"""The finalists of a task, the schedule confirmed last among them."""


@dataclass(frozen=True, slots=True)
class KnownReport:
    """The report of a task from before."""

    report: TaskReport
    at: datetime | None  # when this job confirmed it, before it was interrupted; None: another one did

    @property
    def is_news(self) -> bool:
        """Whether this job is yet to tell that it is confirmed."""
        return self.at is None and self.report.is_confirmed


def unchanged_reports(context: JobContext, finalists: Finalists) -> dict[str, KnownReport]:
    """The reports of such tasks by this job, before it was interrupted, or by the last job of the same model, by key.

    The schedule that it reports is still the one that was confirmed last, no trial was faster since, and none of this
    job since then is a finalist. Tasks that may replace each other are unchanged together or not at all: which of them
    the model runs is decided by times from side by side.
    """
    store, key = context.store, context.target.key
    keys = [state.task.key for state in context.states]
    confirmed, best = store.confirmations(keys, key), store.best_many(keys, key)
    reports = [*_last_reports(context).items(), *_own_reports(context, confirmed).items()]
    known = {task: one for task, one in reports if task in confirmed and _is_of(one.report, confirmed[task])}
    if not known:
        return {}
    tried_at = store.jobs.tried_at(context.job.id)

    def is_fresh(task: str, schedule: Schedule, since: datetime | None) -> bool:
        at = tried_at.get((task, schedule.key))
        return at is not None and (since is None or at > since)

    def is_settled(state: TaskState) -> bool:
        task = state.task.key
        if task not in known:
            return False
        report, since = known[task].report, known[task].at
        if not _stands(report, confirmed[task], best.get(task), context.target) or (
            report.default_s is not None and state.fails(state.default)  # as when it is taken back
        ):
            return False
        return not any(is_fresh(task, s, since) for s, _ in finalists(state, confirmed[task].schedule))

    open_tasks = {number for number, state in enumerate(context.states) if not is_settled(state)}
    while more := _chain_neighbours(context, open_tasks):
        open_tasks |= more
    return {
        state.task.key: replace(known[state.task.key], report=_renew(known[state.task.key].report, state))
        for number, state in enumerate(context.states)
        if number not in open_tasks
    }


def _own_reports(context: JobContext, confirmed: Mapping[str, Record]) -> dict[str, KnownReport]:
    """The reports of tasks that this job has confirmed, and none since, by what its events tell."""
    events = context.store.jobs.events(context.job.id, limit=None, kinds=[EventKind.CONFIRMED])
    newest = {event.data.get("task_key"): event for event in events}
    reports = {}
    for state in context.states:
        key = state.task.key
        event, record = newest.get(key), confirmed.get(key)
        if event is None or record is None or event.data.get("default_ms") is None:
            continue
        data = {
            "key": key,
            "op": state.task.op,
            "occurrences": state.occurrences,
            "chosen": state.occurrences,
            "trials": len(state.measured),
            "flops": state.task.flops,
            "fraction_of_peak": None,
            "schedule": record.schedule.to_json(),
            "default_schedule": state.default.key,
        }
        told = {name: event.data[name] for name in EVENT_FIELDS if name in event.data}
        reports[key] = KnownReport(from_json(TaskReport, data | told), event.created_at)
    return reports


def _last_reports(context: JobContext) -> dict[str, KnownReport]:
    """The reports of tasks by the model's last finished job on this target."""
    last = _last_report(context)
    return {task.key: KnownReport(task, None) for task in last.tasks} if last else {}


def _last_report(context: JobContext) -> Report | None:
    """The report of the model's last finished job on this target."""
    sha256, key = context.job.spec.model_sha256, context.target.key
    if not sha256:
        return None
    done = context.store.jobs.list([JobState.SUCCEEDED], model_sha256=sha256, target_key=key, limit=1)
    return Report.from_json(done[0].result) if done and done[0].result else None


def _is_of(reported: TaskReport, confirmed: Record) -> bool:
    """Whether a report is of that comparison: none of another job, whose times are told by now, came after its own."""
    return isclose(reported.best_s or 0.0, confirmed.measurement.median_s or 0.0, rel_tol=1e-9)


def _stands(reported: TaskReport, confirmed: Record, best: Record | None, target: Target) -> bool:
    """Whether the reported schedule is the one confirmed last, by the present compiler, and still the best."""
    return (
        reported.is_confirmed
        and reported.best_s is not None
        and reported.schedule == confirmed.schedule.to_json()
        and best is not None
        and best.schedule == confirmed.schedule
        and is_current(confirmed.measurement.provenance, target)
    )


def _chain_neighbours(context: JobContext, open_tasks: set[int]) -> set[int]:
    """Tasks that are in one chain with any of these, and are not among them."""
    chains: list[set[int]] = [{part.task for part in chain.parts} for chain, _ in context.assembly.chains]
    return set().union(*(chain for chain in chains if chain & open_tasks)) - open_tasks


def _renew(reported: TaskReport, state: TaskState) -> TaskReport:
    used = state.occurrences
    return replace(reported, occurrences=used, chosen=used, trials=len(state.measured), retimed=None)
