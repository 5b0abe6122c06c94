"""New jobs: how one is added to the queue. There is one unfinished job of a spec, and one of a submission's name.

All of it happens within a transaction that is repeated where another process was quicker: `change_queue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import exc as sql
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunewright.codegen.target import Target

from .database import Database
from .errors import NotFound
from .job import GRAPH, Conflict, EventKind, Idempotency, JobSpec, JobState, QuotaExceeded, SearchBudget, Submission
from .job_edits import add_tags, detach
from .job_reader import jobs_of
from .leases import Change, begin_change
from .schema import LOCK
from .tables import IS_UNFINISHED, JobRow, JobTaskRow, SubmissionRow, TargetRow
from .translate import clean, target_values

Result = TypeVar("Result")


class InsertRace(Exception):
    """Another process has inserted the same row first: roll back and begin again."""


def change_queue(database: Database, work: Callable[[Change], Result]) -> Result:
    """The result of `work` in a transaction, which is repeated after an InsertRace."""
    while True:
        try:
            with begin_change(database) as change:
                return work(change)
        except InsertRace:
            continue
        except sql.IntegrityError as error:
            raise NotFound(f"{database}: the target or a task of the job is not stored") from error


def find_submission(session: Session, idempotency: Idempotency) -> Submission | None:
    """The submission of this name, as it stands. Raises Conflict where the name came with another fingerprint."""
    submission = session.get(SubmissionRow, (idempotency.owner, idempotency.name))
    if submission is None:
        return None
    if submission.fingerprint != idempotency.fingerprint:
        raise Conflict("the idempotency key came with another request before")
    row = session.get(JobRow, submission.job_id)
    if row is None:  # it was deleted in between, with its names
        return None
    is_new = row.created_at == submission.created_at  # one transaction's
    return Submission(jobs_of(session, [row])[0], is_new)


def add_submission(change: Change, idempotency: Idempotency, job_id: int) -> None:
    """Store which job a submission came to. Raises InsertRace where one of that name appeared in between."""
    values = {
        "owner": idempotency.owner,
        "name": idempotency.name,
        "fingerprint": idempotency.fingerprint,
        "job_id": job_id,
        "created_at": change.now,
    }
    if not change.database.add(change.session, SubmissionRow, ["owner", "name"], [values]):
        raise InsertRace


def join_or_add(
    change: Change,
    spec: JobSpec,
    values: dict[str, Any],
    tags: Sequence[str],
    most_unfinished: int | None,
    graph: Mapping[str, Any] | None = None,
) -> tuple[JobRow, bool]:
    """The unfinished job of a spec, which is queued if a command left it, or a new one; and whether it is new.

    Raises QuotaExceeded, and InsertRace as `add_job`.
    """
    if most_unfinished is not None and not change.database.is_sqlite:
        # Submissions of an owner count its jobs one after the other. SQLite has one writer anyway.
        change.session.execute(select(func.pg_advisory_xact_lock(LOCK, func.hashtext(values["owner"]))))
    row = unfinished_row(change.session, spec)
    if row is None:
        if most_unfinished is not None:
            _check_quota(change.session, values["owner"], most_unfinished)
        return add_job(change, spec, values, tags, graph), True
    if row.attached and not change.is_leased(row):
        detach(change, row)
    return row, False


def add_job(
    change: Change,
    spec: JobSpec,
    values: dict[str, Any],
    tags: Sequence[str] = (),
    graph: Mapping[str, Any] | None = None,
) -> JobRow:
    """A new job, queued; the graph of its model's tasks is kept with it.

    Raises InsertRace where an unfinished one of the spec appeared in between.
    """
    moments = {"created_at": change.now, "updated_at": change.now}
    values = values | _next_number(change.database, change.session) | moments
    if not change.database.add(change.session, JobRow, ["spec_key"], [values], IS_UNFINISHED):
        raise InsertRace
    row = unfinished_row(change.session, spec)
    assert row is not None  # it was just added
    change.session.add_all(
        JobTaskRow(job_id=row.id, position=i, task_key=task.task_key, occurrences=task.occurrences)
        for i, task in enumerate(spec.tasks)
    )
    add_tags(change, row.id, tags)
    more = {} if graph is None else {GRAPH: dict(graph)}
    change.add_event(row, EventKind.QUEUED, label=row.label, priority=row.priority, budget=row.budget, **more)
    change.session.flush()
    return row


def new_values(spec: JobSpec, label: str, budget: SearchBudget) -> dict[str, Any]:
    """The columns of a new JobRow."""
    return {
        "spec_key": spec.key,
        "model_sha256": spec.model_sha256,
        "target_key": spec.target_key or None,
        "label": clean(label).strip(),
        "settings": spec.settings,
        "state": JobState.QUEUED.value,
        "budget": budget.to_json(),
    }


def unfinished_row(session: Session, spec: JobSpec) -> JobRow | None:
    """The unfinished job of a spec, locked."""
    return session.scalar(select(JobRow).where(JobRow.spec_key == spec.key, IS_UNFINISHED).with_for_update())


def assign_device(change: Change, row: JobRow, devices: Sequence[Target]) -> bool:
    """Give a job for any device the target of the first device that suits it. False where none does."""
    job_spec = jobs_of(change.session, [row])[0].spec
    for spec, target in filter(None, map(job_spec.on, devices)):
        equal_jobs = select(JobRow.id).where(JobRow.spec_key == spec.key, IS_UNFINISHED)
        if change.session.scalar(equal_jobs) is None:
            change.database.add(change.session, TargetRow, ["key"], [target_values(target)])
            row.target_key, row.settings, row.spec_key = target.key, spec.settings, spec.key
            try:
                change.session.flush()
            except sql.IntegrityError as error:  # an equal one was stored in between
                raise InsertRace from error
            return True
    return False


def keep_number(database: Database, session: Session, job_id: int) -> None:
    """Keep SQLite from giving the number of a job that is deleted to another one (`_next_number`)."""
    if database.is_sqlite and job_id > _newest_deleted(session):
        session.connection().exec_driver_sql(f"PRAGMA user_version = {job_id:d}")


def _next_number(database: Database, session: Session) -> dict[str, int]:
    """The column `id` of a new job on SQLite, which would use that of the newest one again once it is deleted.

    PostgreSQL counts by itself.
    """
    if not database.is_sqlite:
        return {}
    newest = session.scalar(select(func.max(JobRow.id))) or 0
    return {"id": max(newest, _newest_deleted(session)) + 1}


def _newest_deleted(session: Session) -> int:
    """The highest number of a job that was deleted from a SQLite file; 0 without any."""
    return int(session.connection().exec_driver_sql("PRAGMA user_version").scalar_one())


def _check_quota(session: Session, owner: str, most_unfinished: int) -> None:
    query = select(func.count()).select_from(JobRow).where(JobRow.owner == owner, IS_UNFINISHED)
    if (session.scalar(query) or 0) >= most_unfinished:
        raise QuotaExceeded(f"there are {most_unfinished} unfinished jobs, as many as one may have")
