"""Retiming: what a job does that times the fastest schedules of stale tasks again, as after an upgrade.

It searches nothing. Of each task whose best was found by other versions, the fastest few that are known, the one
confirmed last among them, are compared with the default of this version, as after a search: see `confirmation`. Other
tasks are not timed. What was confirmed is not stale any more, so a job that is interrupted goes on with the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tunewright.codegen.codec import from_json
from tunewright.db.database import KEYS_AT_ONCE, batches
from tunewright.db.staleness import StaleBest
from tunewright.search_space.measurement import Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import holds

from ..confirmed_time import ConfirmedTime
from ..known_times import present_versions, versions_of
from ..models.assembly import total_s
from .comparison_rule import Comparison
from .context import JobContext
from .known_report import RETIMED, KnownReport, confirmed_events, task_report
from .report import Payoff, Retimed, TaskReport, Upgrade
from .task_state import TaskState, time_s


class Retiming:
    """The rule of comparison by which stale tasks are timed again: which they are, and what came of it."""

    def __init__(self, context: JobContext) -> None:
        self._context, self._kind = context, context.target.kind
        self._count = context.job.spec.retimed
        self._versions = present_versions(self._kind)
        self._before: dict[str, StaleBest] = {}  # by task key, of those that were found stale by this process
        self._told = confirmed_events(context)

    def _stale(self, states: Sequence[TaskState]) -> set[str]:
        """Keys of the tasks whose best is of other versions as of now. Raises StoreError."""
        staleness, target_key = self._context.store.staleness, self._context.target.key
        stale = {
            best.task_key: best
            for keys in batches([state.task.key for state in states], KEYS_AT_ONCE)
            for best in staleness.tasks(target_key, self._versions, task_keys=keys)
        }
        self._before |= stale
        return set(stale)

    def untried(self) -> list[int]:
        """Numbers of the stale tasks whose default is new with this version."""
        stale = self._stale(self._context.states)
        return [
            number
            for number, state in enumerate(self._context.states)
            if state.task.key in stale and state.default.key not in state.measured
        ]

    def settled(self) -> dict[str, KnownReport]:
        """The reports of tasks that are not stale, or not any more since this job has confirmed them, by key."""
        stale = self._stale(self._context.states)
        return self._known_reports([state for state in self._context.states if state.task.key not in stale])

    def settled_since(self, state: TaskState) -> TaskReport | None:
        """The report of a task that another job has confirmed just now; None where it is stale still."""
        return None if self._stale([state]) else self._known_reports([state])[state.task.key].report

    def _known_reports(self, states: Sequence[TaskState]) -> dict[str, KnownReport]:
        keys = [state.task.key for state in states]
        best = self._context.store.best_many(keys, self._context.target.key)
        return {state.task.key: self._known_report(state, best.get(state.task.key)) for state in states}

    def _known_report(self, state: TaskState, best: Record | None) -> KnownReport:
        schedule = state.default if best is None else best.schedule
        report = task_report(state, schedule, state.times, state.times.is_confirmed)
        event = self._told.get(state.task.key)  # of this job, before it was interrupted
        if event is None:
            return KnownReport(report, None)
        data = event.data.get(RETIMED)
        return KnownReport(replace(report, retimed=data and from_json(Retimed, data)), event.created_at)

    def finalists(self, state: TaskState, confirmed: Schedule | None) -> Comparison:
        """What is compared of a stale task: the default, and the fastest few of all that works and is legal still.

        The one that is confirmed and the one that is used are among these. Of each object code there is one. Where
        nothing works it is the default.
        """
        before = self._before.get(state.task.key)
        works = {key: entry for key, entry in state.measured.items() if entry[1].status is Status.OK}
        ordered = sorted(works.values(), key=lambda entry: time_s(entry[1]))
        used = before.schedule if before is not None else None
        first = dict.fromkeys(s for s in (state.default, used, confirmed) if s is not None and s.key in works)
        chosen: Comparison = []
        for schedule, measurement in [*(works[s.key] for s in first), *ordered]:
            others = [entry for entry in chosen if entry[0] != state.default]
            if len(others) >= self._count and schedule not in first:
                break
            digests = {m.object_sha256 for _, m in chosen} - {""}
            is_new = measurement.object_sha256 not in digests and all(schedule != s for s, _ in chosen)
            if is_new and holds(state.task, self._context.target, schedule):
                chosen.append((schedule, measurement))
        if not chosen and (failed := state.measured.get(state.default.key)) is not None:
            return [failed]  # so that it is confirmed that nothing works any more
        return chosen

    def has_rivals(self, finalists: Comparison, confirmed: Schedule | None) -> bool:
        """Whether there is anything: also a default alone is timed by this version."""
        return bool(finalists)

    def judge(self, state: TaskState, report: TaskReport) -> TaskReport:
        """The report of a task that was compared, with what was known of it before."""
        before = self._before.get(state.task.key)
        if before is None:
            return report
        times = state.times  # as they were told until now
        retimed = Retimed(
            versions_of(before.provenance, self._kind),
            times.default_s,
            times.best_s,
            _payoff(report, before.schedule),
            times.default_interval_s,
            times.best_interval_s,
        )
        return replace(report, retimed=retimed)

    def upgrade(self, reports: Sequence[TaskReport]) -> Upgrade:
        """What the upgrade did to the tasks that were re-timed. Raises StoreError."""
        context = self._context
        stale = [(report.chosen, report, report.retimed) for report in reports if report.retimed is not None]
        uses = [chosen for chosen, _, _ in stale]
        return Upgrade(
            schedules=self._count,
            versions=self._versions,
            seconds=context.spent_s,
            tuning_s=context.store.staleness.tuning_s([report.key for _, report, _ in stale], context.target.key),
            tasks=len(stale),
            payoffs=Counter(retimed.payoff.value for _, _, retimed in stale),
            before_default_s=total_s(uses, [retimed.default_s for _, _, retimed in stale]),
            before_s=total_s(uses, [retimed.best_s for _, _, retimed in stale]),
            default_s=total_s(uses, [report.default_s for _, report, _ in stale]),
            best_s=total_s(uses, [report.best_s for _, report, _ in stale]),
        )


def _payoff(report: TaskReport, before: Schedule) -> Payoff:
    """What a comparison says of tuning, where `before` was the best until then."""
    if report.best_s is None:
        return Payoff.FAILS
    winner = Schedule.from_json(report.schedule)
    if winner.key == report.default_key:
        return Payoff.DEFAULT
    if report.default_s is not None:
        best = ConfirmedTime(report.best_s, report.best_interval_s, report.noise)
        if not ConfirmedTime(report.default_s, report.default_interval_s, report.noise).is_slower_than(best):
            return Payoff.UNSURE
    return Payoff.PAYS if winner == before else Payoff.OTHER
