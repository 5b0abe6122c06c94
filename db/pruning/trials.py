"""Slow trials of jobs that finished long ago. They are removed only where a policy asks for it.

What anything here depends on stays: failures and what was taken back, which nobody is to try again; the best, what was
confirmed, and defaults, which times are told beside; imported trials, and those of no job; the newest ones, which cost
models are judged on; the last one of each job, whose number tells how many there were.

There may be millions of trials, and mostly nothing new may go. So those of a task on a target are read when a job of
theirs has become old enough, and again when one that was among the newest is not any more.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Illegal
from tunewright.search_space.sketches import default_schedule

from ..choice import lock_pairs
from ..database import KEYS_AT_ONCE, REMOVED_AT_ONCE, Database, DatabasePart, batches, read_session, write_session
from ..errors import Damaged
from ..job_reader import TRIALS
from ..pruned_of_job import PrunedOfJob
from ..tables import IS_FINISHED, ConfirmationRow, JobRow, JobTaskRow, TargetRow, TaskRow, TrialRow, VoidRow
from ..translate import to_target, to_task
from .policy import LEARNED_TRIALS, Pruned
from .rules import WorkingTrial, slower_trials

WORKING_TRIALS = select(*(getattr(TrialRow, name) for name in WorkingTrial._fields)).where(
    TrialRow.status == Status.OK.value, TrialRow.is_imported.is_(False)
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

OVERLAP_S = 60.0
"""Time before each look at the jobs that the next one looks at again: the end of a job is seen after its moment."""

_log = logging.getLogger("tunewright.db")


class TrialsPlace(NamedTuple):
    """Where trials are that are compared with each other."""

    task_key: str
    target_key: str
    kind: str  # of the target


class TrialRule(NamedTuple):
    """Which of a place's trials may go."""

    place: TrialsPlace
    before: datetime  # only those of jobs that finished before
    best: int  # none of so many that are the fastest


class SlowTrials(NamedTuple):
    """The trials of a place that may go, the oldest first."""

    trials: list[WorkingTrial]
    state: tuple[int, ...]  # what else could spare some of them has another one


@dataclass
class PruningMemory:
    """What a process knows of trials since it pruned them last by the same policy."""

    best: int
    looked_to: datetime = EPOCH  # until when finished jobs were looked at
    read_to: int = 0  # the newest trial that was looked at
    newest: dict[str, deque[int]] = field(default_factory=dict)  # kind -> ids of what cost models learn from
    places: dict[TrialsPlace, int] = field(default_factory=dict)  # with a trial that may go once none is older of those
    damaged: set[TrialsPlace] = field(default_factory=set)

    def due(self) -> list[TrialsPlace]:
        """The places that have something that may go."""
        return [place for place, trial_id in self.places.items() if trial_id < self.below(place.kind)]

    def below(self, kind: str) -> int:
        """Only trials with smaller ids may go. Cost models learn from all of a kind that has few."""
        ids = self.newest.get(kind)
        return ids[0] if ids is not None and len(ids) >= LEARNED_TRIALS else 0


class TrialPruning(DatabasePart):
    """The part of `Pruning` for trials."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._memory: PruningMemory | None = None  # none: also while it is at work

    def prune(self, before: datetime, best: int, dry_run: bool) -> Iterator[Pruned]:
        """Remove trials of jobs that finished before a moment: what each transaction removes."""
        memory = None if dry_run else self._memory
        if memory is None or memory.best != best or before < memory.looked_to:
            memory = PruningMemory(best)
        if not dry_run:
            self._memory = None
        try:
            yield from self._prune(memory, before, dry_run)
        finally:
            if not dry_run:
                self._memory = memory

    def _prune(self, memory: PruningMemory, before: datetime, dry_run: bool) -> Iterator[Pruned]:
        places, looked_to = self._places(memory.looked_to, before)
        memory.places |= dict.fromkeys((place for place in places if place not in memory.damaged), 0)
        memory.looked_to = looked_to
        if not memory.places:
            return
        self._read_newest(memory)
        for place in memory.due():
            try:
                yield from self._prune_place(memory, TrialRule(place, before, memory.best), dry_run)
            except Damaged as error:  # the other places are none the worse
                memory.damaged.add(place)
                del memory.places[place]
                where = {"task": place.task_key, "target": place.target_key, "reason": str(error)}
                _log.warning("trials not pruned", extra=where)

    def _prune_place(self, memory: PruningMemory, rule: TrialRule, dry_run: bool) -> Iterator[Pruned]:
        """Remove the trials of a place that may go, and remember which one may go next."""
        below_id, is_read = memory.below(rule.place.kind), False
        while not is_read:
            slow = self._slow(rule)
            gone, is_read = [trial for trial in slow.trials if trial.id < below_id], True
            if dry_run:
                yield Pruned(trials=len(gone))
                continue
            for some in batches(gone, REMOVED_AT_ONCE):
                count = self._delete(rule.place, some, slow.state)
                if is_read := count is not None:
                    yield Pruned(trials=count)
                else:
                    break
        if later := [trial.id for trial in slow.trials if trial.id >= below_id]:
            memory.places[rule.place] = later[0]
        else:
            del memory.places[rule.place]

    @read_session
    def _places(self, session: Session, since: datetime, before: datetime) -> tuple[list[TrialsPlace], datetime]:
        """Where jobs have trials that finished between two moments; and since when the next look is to be."""
        looked_to = min(before, self.database.now(session) - timedelta(seconds=OVERLAP_S))
        columns = JobTaskRow.task_key, JobRow.target_key, TargetRow.kind
        query = (
            select(*columns)
            .join(JobRow, JobRow.id == JobTaskRow.job_id)
            .join(TargetRow, TargetRow.key == JobRow.target_key)
            .where(IS_FINISHED, JobRow.updated_at >= since, JobRow.updated_at < before)
            .distinct()
            .order_by(*columns)
        )
        return list(map(TrialsPlace._make, session.execute(query))), looked_to

    def _read_newest(self, memory: PruningMemory) -> None:
        """Bring up to date what cost models learn from."""
        newest_id = self._newest_id()
        if memory.newest:
            for trial_id, kind in self._stored_between(memory.read_to, newest_id):
                if kind in memory.newest:
                    memory.newest[kind].append(trial_id)
        memory.read_to = newest_id
        unknown = {place.kind for place in memory.places} - memory.newest.keys()
        for kind in unknown | {place.kind for place in memory.due()}:  # some may have been taken back since
            memory.newest[kind] = self._newest(kind, newest_id)

    @read_session
    def _newest_id(self, session: Session) -> int:
        return session.scalar(select(func.max(TrialRow.id))) or 0

    @read_session
    def _stored_between(self, session: Session, after_id: int, to_id: int) -> list[tuple[int, str]]:
        """The ids of trials that were stored since another one, ascending, and the kinds of their targets."""
        query = select(TrialRow.id, TargetRow.kind).join(TargetRow, TargetRow.key == TrialRow.target_key)
        query = query.where(TrialRow.id > after_id, TrialRow.id <= to_id, TrialRow.status != Status.VOIDED.value)
        return [(trial_id, kind) for trial_id, kind in session.execute(query.order_by(TrialRow.id))]

    @read_session
    def _newest(self, session: Session, kind: str, to_id: int) -> deque[int]:
        """The ids of the newest trials of a kind of target, ascending."""
        targets = select(TargetRow.key).where(TargetRow.kind == kind)
        query = select(TrialRow.id).where(TrialRow.target_key.in_(targets), TrialRow.status != Status.VOIDED.value)
        query = query.where(TrialRow.id <= to_id).order_by(TrialRow.id.desc()).limit(LEARNED_TRIALS)
        return deque(reversed(session.scalars(query).all()), LEARNED_TRIALS)

    @read_session
    def _slow(self, session: Session, rule: TrialRule) -> SlowTrials:
        """The trials that may go, also those that cost models learn from."""
        place, of_place = rule.place, TrialRow.of(rule.place.task_key, rule.place.target_key)
        state = _state(session, place)
        crowd = select(TrialRow.median_s).where(*of_place, TrialRow.status == Status.OK.value)
        if session.scalar(crowd.order_by(TrialRow.median_s).offset(rule.best).limit(1)) is None:
            return SlowTrials([], state)
        of_confirmations = ConfirmationRow.of(place.task_key, place.target_key)
        query = select(ConfirmationRow.created_at, ConfirmationRow.schedule_key).where(*of_confirmations)
        compared = session.execute(query).all()
        trials = map(WorkingTrial._make, session.execute(WORKING_TRIALS.where(*of_place)))
        slower = slower_trials(trials, [row.created_at for row in compared], rule.best)
        counts = _trial_counts(session, {trial.job_id for trial in slower if trial.job_id is not None}, rule.before)
        slower = [trial for trial in slower if trial.job_id in counts and trial.ordinal != counts[trial.job_id] - 1]
        if slower:
            stay = {_default_key(session, place)} | {row.schedule_key for row in compared}
            slower = [trial for trial in slower if trial.schedule_key not in stay]
        return SlowTrials(slower, state)

    @write_session
    def _delete(
        self, session: Session, place: TrialsPlace, trials: Sequence[WorkingTrial], state: tuple[int, ...]
    ) -> int | None:
        """Delete those of these trials that may still go; how many. None where others may go by now."""
        jobs: dict[int | None, JobRow] = {}
        for ids in batches(sorted({trial.job_id for trial in trials if trial.job_id is not None}), KEYS_AT_ONCE):
            query = select(JobRow).where(JobRow.id.in_(ids)).order_by(JobRow.id).with_for_update()
            jobs |= {row.id: row for row in session.scalars(query)}
        lock_pairs(self.database, session.connection(), [(place.target_key, place.task_key)])
        if _state(session, place) != state:
            return None
        counts: Counter[int | None] = Counter()
        for some in batches(trials, KEYS_AT_ONCE):
            left = select(TrialRow.id, TrialRow.job_id).where(TrialRow.id.in_([trial.id for trial in some]))
            gone = {trial_id: job_id for trial_id, job_id in session.execute(left) if job_id in jobs}
            session.execute(delete(TrialRow).where(TrialRow.id.in_(gone)))
            counts.update(gone.values())
        for job_id, count in counts.items():
            job = jobs[job_id]
            PrunedOfJob.of(job.progress).with_trials(place.task_key, Status.OK, count).store(job)
        return counts.total()


def _state(session: Session, place: TrialsPlace) -> tuple[int, ...]:
    """What changes when trials of a place are taken back or confirmed, after which fewer may go."""
    keys = place.task_key, place.target_key
    newest_void = select(func.max(VoidRow.id)).where(VoidRow.task_key == keys[0], VoidRow.target_key == keys[1])
    confirmations = select(func.count()).select_from(ConfirmationRow).where(*ConfirmationRow.of(*keys))
    return session.scalar(newest_void) or 0, session.scalar(confirmations) or 0


def _default_key(session: Session, place: TrialsPlace) -> str:
    """The key of the default schedule; empty where the task has none."""
    task, target = session.get_one(TaskRow, place.task_key), session.get_one(TargetRow, place.target_key)
    try:
        return default_schedule(to_task(task.data), to_target(target.data)).key
    except Illegal:
        return ""


def _trial_counts(session: Session, job_ids: Collection[int], before: datetime) -> Mapping[int | None, int]:
    """Job -> number of its trials, of those of the jobs that finished before a moment."""
    counts: dict[int | None, int] = {}
    for ids in batches(sorted(job_ids), KEYS_AT_ONCE):
        query = select(JobRow.id, TRIALS).where(JobRow.id.in_(ids), IS_FINISHED, JobRow.updated_at < before)
        counts |= dict(session.execute(query).all())
    return counts
