"""Slow trials of jobs that finished long ago. They are removed only where a policy asks for it.

What anything here depends on stays: failures and what was taken back, which nobody is to try again; the best, what was
confirmed, and defaults, which times are told beside; imported trials, and those of no job; the newest ones, which cost
models are judged on; the last one of each job, whose number tells how many there were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Illegal
from tunewright.search_space.sketches import default_schedule

from .choice import lock_pairs
from .database import KEYS_AT_ONCE, DatabasePart, batches, read_session, write_session
from .job_reader import TRIALS, TRIALS_OF_TASKS, pruned_trials
from .progress_pruning import IS_FINISHED, mark_pruned
from .prunable import WorkingTrial, slower_trials
from .retention import LEARNED_TRIALS, ROWS_AT_ONCE, Pruned
from .tables import ConfirmationRow, JobRow, TargetRow, TaskRow, TrialRow
from .translate import to_target, to_task

IS_WORKING = TrialRow.status == Status.OK.value, TrialRow.is_imported.is_(False)
"""Conditions on a `WorkingTrial`."""

WORKING_TRIALS = select(*(getattr(TrialRow, name) for name in WorkingTrial._fields)).where(*IS_WORKING)


class PairRule(NamedTuple):
    """Which trials of a task on a target may go."""

    task_key: str
    target_key: str
    below_id: int  # only older ones
    before: datetime  # only those of jobs that finished before
    best: int  # none of so many that are the fastest
    default_key: str  # nor that of the default


class TrialPruning(DatabasePart):
    """The part of `Pruning` for trials."""

    def prune(self, before: datetime, best: int, dry_run: bool) -> Iterator[Pruned]:
        """Remove trials of jobs that finished before a moment: what each transaction removes."""
        learned = self._learned_from()
        for task_key, target_key, kind in self._crowded(best):
            if kind not in learned:  # cost models learn from all of them
                continue
            rule = PairRule(task_key, target_key, learned[kind], before, best, "")
            if not self._slower(rule):
                continue
            rule = rule._replace(default_key=self._default_key(task_key, target_key))
            slower = self._slower(rule)
            if dry_run:
                yield Pruned(trials=len(slower))
                continue
            while slower:
                count = self._delete(rule, sorted({trial.job_id for trial in slower if trial.job_id is not None}))
                yield Pruned(trials=count)
                slower = self._slower(rule) if count == ROWS_AT_ONCE else []

    @read_session
    def _learned_from(self, session: Session) -> dict[str, int]:
        """Kind of target -> the id of the oldest trial of the newest that cost models are judged on, of full kinds."""
        ids: dict[str, int] = {}
        for kind in session.scalars(select(TargetRow.kind).distinct()):
            targets = select(TargetRow.key).where(TargetRow.kind == kind)
            query = select(TrialRow.id).where(TrialRow.target_key.in_(targets), TrialRow.status != Status.VOIDED.value)
            oldest = session.scalar(query.order_by(TrialRow.id.desc()).limit(1).offset(LEARNED_TRIALS - 1))
            if oldest is not None:
                ids[kind] = oldest
        return ids

    @read_session
    def _crowded(self, session: Session, best: int) -> list[tuple[str, str, str]]:
        """Task, target and its kind, of those with more trials of jobs than stay."""
        counts = (
            select(TrialRow.task_key, TrialRow.target_key)
            .where(TrialRow.job_id.is_not(None), *IS_WORKING)
            .group_by(TrialRow.task_key, TrialRow.target_key)
            .having(func.count() > best)
            .subquery()
        )
        query = select(counts, TargetRow.kind).join(TargetRow, TargetRow.key == counts.c.target_key)
        rows = session.execute(query.order_by(counts.c.task_key, counts.c.target_key))
        return [(task_key, target_key, kind) for task_key, target_key, kind in rows]

    @read_session
    def _default_key(self, session: Session, task_key: str, target_key: str) -> str:
        """The key of the default schedule; empty where the task has none."""
        task, target = session.get_one(TaskRow, task_key), session.get_one(TargetRow, target_key)
        try:
            return default_schedule(to_task(task.data), to_target(target.data)).key
        except Illegal:
            return ""

    @read_session
    def _slower(self, session: Session, rule: PairRule) -> list[WorkingTrial]:
        """The trials that may go, the oldest first."""
        return _slower(session, rule)

    @write_session
    def _delete(self, session: Session, rule: PairRule, job_ids: Collection[int]) -> int:
        """Delete some of the trials that may go of these jobs; how many."""
        jobs: dict[int, JobRow] = {}
        for ids in batches(job_ids, KEYS_AT_ONCE):
            query = select(JobRow).where(JobRow.id.in_(ids)).order_by(JobRow.id).with_for_update()
            jobs |= {row.id: row for row in session.scalars(query)}
        lock_pairs(self.database, session.connection(), [(rule.target_key, rule.task_key)])
        gone = [trial for trial in _slower(session, rule) if trial.job_id in jobs][:ROWS_AT_ONCE]
        for some in batches(gone, KEYS_AT_ONCE):
            session.execute(delete(TrialRow).where(TrialRow.id.in_([trial.id for trial in some])))
        for job_id, count in Counter(trial.job_id for trial in gone).items():
            assert job_id is not None  # `jobs` has it
            _note(jobs[job_id], rule.task_key, count)
        return len(gone)


def _slower(session: Session, rule: PairRule) -> list[WorkingTrial]:
    of_pair = TrialRow.of(rule.task_key, rule.target_key)
    trials = map(WorkingTrial._make, session.execute(WORKING_TRIALS.where(*of_pair)))
    confirmations = select(ConfirmationRow.created_at, ConfirmationRow.schedule_key).where(
        *ConfirmationRow.of(rule.task_key, rule.target_key)
    )
    compared = session.execute(confirmations).all()
    stay = {rule.default_key} | {row.schedule_key for row in compared}
    slower = [
        trial
        for trial in slower_trials(trials, [row.created_at for row in compared], rule.best)
        if trial.id < rule.below_id and trial.schedule_key not in stay
    ]
    counts = _trials_of(session, {trial.job_id for trial in slower if trial.job_id is not None}, rule.before)
    return [trial for trial in slower if trial.job_id in counts and trial.ordinal != counts[trial.job_id] - 1]


def _trials_of(session: Session, job_ids: Iterable[int], before: datetime) -> Mapping[int | None, int]:
    """Job -> number of its trials, of those of the jobs that finished before a moment."""
    counts: dict[int | None, int] = {}
    for ids in batches(sorted(job_ids), KEYS_AT_ONCE):
        query = select(JobRow.id, TRIALS).where(JobRow.id.in_(ids), IS_FINISHED, JobRow.updated_at < before)
        counts |= dict(session.execute(query).all())
    return counts


def _note(job: JobRow, task_key: str, count: int) -> None:
    """Store with a locked job that so many of its trials of a task were removed, all of which worked."""
    pruned = {
        key: {str(status): n for status, n in counts.items()} for key, counts in pruned_trials(job.progress).items()
    }
    of_task = pruned.setdefault(task_key, {})
    of_task[str(Status.OK)] = of_task.get(str(Status.OK), 0) + count
    mark_pruned(job, TRIALS_OF_TASKS, pruned)
