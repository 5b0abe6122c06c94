"""Staleness: which bests were found by other versions of the compiler, and what finding them took."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, false, func, or_, select
from sqlalchemy.orm import Session

from tunewright.search_space.schedule import Schedule

from .database import KEYS_AT_ONCE, DatabasePart, batches, read_session
from .job import RETIME, JobState
from .tables import BestRow, JobRow, JobTaskRow, TargetRow, TaskRow, TrialRow, UploadRow
from .translate import to_schedule

Versions = Mapping[str, str]
"""Entries that the provenance of a measurement has where it is of the present compiler, driver and Tunewright."""


@dataclass(frozen=True, slots=True)
class StaleBest:
    """A task on a target whose best was timed here, by other versions."""

    task_key: str
    op: str  # the task's label
    schedule: Schedule
    provenance: Mapping[str, str]


class Staleness(DatabasePart):
    """Bests of other versions. They are few beside trials, of which none is read. Every method may raise StoreError.

    The best of a task is `Store.best`. What was imported is not stale: it was never timed here.
    """

    @read_session
    def tasks(
        self,
        session: Session,
        target_key: str,
        versions: Versions,
        *,
        task_keys: Collection[str] | None = None,
        after: str = "",
        limit: int = KEYS_AT_ONCE,
    ) -> list[StaleBest]:
        """At most `limit` of the tasks on a target with a stale best, by key, from behind `after` on.

        Where given, only those of these, which are no more than `KEYS_AT_ONCE`.
        """
        query = select(BestRow.task_key, TaskRow.op, BestRow.schedule, BestRow.provenance)
        query = query.join(TaskRow, TaskRow.key == BestRow.task_key)
        query = query.where(BestRow.target_key == target_key, BestRow.task_key > after, _is_stale(versions))
        if task_keys is not None:
            query = query.where(BestRow.task_key.in_(sorted(set(task_keys))))
        rows = session.execute(query.order_by(BestRow.task_key).limit(limit))
        return [StaleBest(key, op, to_schedule(schedule), provenance) for key, op, schedule, provenance in rows]

    @read_session
    def counts(self, session: Session, versions: Mapping[str, Versions]) -> dict[str, int]:
        """Target key -> its number of tasks with a stale best, of targets that have any. `versions` by target kind."""
        is_stale = or_(false(), *(and_(TargetRow.kind == kind, _is_stale(those)) for kind, those in versions.items()))
        query = select(BestRow.target_key, func.count()).join(TargetRow, TargetRow.key == BestRow.target_key)
        return dict(session.execute(query.where(is_stale).group_by(BestRow.target_key)).all())

    @read_session
    def model_jobs(self, session: Session, task_keys: Iterable[str], target_key: str, limit: int = 100) -> list[int]:
        """Ids of at most `limit` jobs for a target with any of these tasks, the newest first.

        Each is the newest that succeeded with a model that was uploaded and is there.
        """
        newest: dict[str, int] = {}
        for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
            query = select(JobRow.model_sha256, func.max(JobRow.id))
            query = query.join(JobTaskRow, JobTaskRow.job_id == JobRow.id)
            query = query.join(UploadRow, UploadRow.sha256 == JobRow.model_sha256)
            query = query.where(JobTaskRow.task_key.in_(keys), JobRow.target_key == target_key)
            query = query.where(JobRow.state == JobState.SUCCEEDED.value).group_by(JobRow.model_sha256)
            for sha256, job_id in session.execute(query):
                newest[sha256] = max(job_id, newest.get(sha256, 0))
        return sorted(newest.values(), reverse=True)[:limit]

    @read_session
    def tuning_s(self, session: Session, task_keys: Iterable[str], target_key: str) -> float:
        """Seconds that jobs searched to make the trials of these tasks on a target.

        Of a job with trials of other tasks too, the part that its trials of these are. Jobs that re-time make none, but
        for a default here and there, and are left out.
        """
        own: dict[int, int] = {}  # job id -> its trials of these tasks
        for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
            query = select(JobRow.id, func.count()).join(TrialRow, TrialRow.job_id == JobRow.id)
            query = query.where(TrialRow.task_key.in_(keys), TrialRow.target_key == target_key)
            for job_id, count in session.execute(query.group_by(JobRow.id)):
                own[job_id] = own.get(job_id, 0) + count
        spent_s = 0.0
        for ids in batches(own, KEYS_AT_ONCE):
            trials = select(func.count()).where(TrialRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
            searched = JobRow.id.in_(ids), JobRow.settings[RETIME].as_string().is_(None)
            for job_id, job_s, count in session.execute(select(JobRow.id, JobRow.spent_s, trials).where(*searched)):
                spent_s += job_s * own[job_id] / count
        return spent_s


def _is_stale(versions: Versions) -> ColumnElement[bool]:
    """Whether a best was timed here, and by any other version; never where nothing is known of the present ones."""
    others = [func.coalesce(BestRow.provenance[name].as_string(), "") != text for name, text in versions.items()]
    return and_(BestRow.is_imported.is_(False), or_(false(), *others))
