"""SearchRule: what is compared after a search: whatever is new, or was found by another version of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from math import inf, isclose

from tunewright.codegen.codec import from_json
from tunewright.codegen.target import Target
from tunewright.db.job import JobState
from tunewright.search_space.measurement import Record
from tunewright.search_space.schedule import Schedule

from ..known_times import is_current
from .comparison_rule import Comparison
from .context import JobContext
from .known_report import EVENT_FIELDS, KnownReport, confirmed_events
from .report import Report, TaskReport
from .task_state import TaskState
from .warm_times import WarmTimes

Finalists = Callable[[TaskState, Schedule | None], Comparison]
"""The finalists of a task, the schedule confirmed last among them."""


class SearchRule:
    """The finalists of each task are compared, where something was found since its last confirmation.

    What is unchanged is taken as it was compared before. What other versions of the compiler found is among the
    finalists, so after an upgrade every job times old winners again.
    """

    def __init__(self, context: JobContext) -> None:
        self._context, self._warm_times = context, WarmTimes.of(context)

    def settled(self) -> dict[str, KnownReport]:
        """The reports of tasks that are unchanged, by key."""
        return _unchanged_reports(self._context, self.finalists)

    def settled_since(self, state: TaskState) -> None:
        """None: what this job has found is compared, whatever others have confirmed."""

    def finalists(self, state: TaskState, confirmed: Schedule | None) -> Comparison:
        """Finalists of each sketch where constants are closer than in trials: sketches differ in how many they read."""
        is_closer = state.task.constant_bytes > 0 and self._warm_times.count(state.task, state.best_s or inf)
        return state.finalists(self._context.target, confirmed, of_each_sketch=is_closer)

    def has_rivals(self, finalists: Comparison, confirmed: Schedule | None) -> bool:
        """Whether there is a choice, or what was timed by an old compiler or chosen before."""
        is_old = any(not is_current(m.provenance, self._context.target) for _, m in finalists)
        return confirmed is not None or len(finalists) > 1 or is_old

    def judge(self, state: TaskState, report: TaskReport) -> TaskReport:
        """The report as it is."""
        return report


def _unchanged_reports(context: JobContext, finalists: Finalists) -> dict[str, KnownReport]:
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
    newest, reports = confirmed_events(context), {}
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
