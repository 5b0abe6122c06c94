"""SqlJobs: the queue over SQLAlchemy, on SQLite and PostgreSQL. How a job changes hands is in `leases`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import bindparam, delete, func, null, select
from sqlalchemy import exc as sql
from sqlalchemy.orm import Session

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Status

from .database import KEYS_AT_ONCE, Database, batches, patient, patient_write
from .errors import NotFound
from .jobs import (
    LEASE_S,
    UNFINISHED,
    Budget,
    Conflict,
    Event,
    EventKind,
    Idempotency,
    Job,
    Jobs,
    JobSpec,
    JobState,
    JobTask,
    Lease,
    NewEvent,
    QuotaExceeded,
    Submitted,
    Trial,
    Wish,
)
from .leases import NO_TARGET, Change, changing, claimed, may_be_taken, next_to_take
from .models import IS_UNFINISHED, ClaimRow, EventRow, JobRow, JobTaskRow, SubmissionRow, TargetRow, TrialRow
from .schema import LOCK
from .translate import clean, target_values, to_job, to_record

LOOKED_AT = 64
"""Jobs that have a task that is looked for, of which it is seen whether they have the others too: the newest ones."""

RELEASED = delete(ClaimRow).where(ClaimRow.job_id == bindparam("job"), ClaimRow.epoch == bindparam("epoch"))
"""The claims of a lease are over."""

Result = TypeVar("Result")


class _Raced(Exception):
    """Another process stored the same first: roll back and begin again."""


class SqlJobs(Jobs):
    """See `Jobs`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # Coming in

    @patient
    def submit(
        self,
        spec: JobSpec,
        label: str,
        budget: Budget,
        *,
        priority: int = 0,
        owner: str = "",
        idempotency: Idempotency | None = None,
        most_unfinished: int | None = None,
    ) -> Submitted:
        values = _new_values(spec, label, budget) | {"priority": priority, "owner": owner}

        def submitted(change: Change) -> Submitted:
            if idempotency is not None and (known := self._submitted(change.session, idempotency)) is not None:
                return known
            if most_unfinished is not None:
                self._serialise(change.session, owner)
            row = _unfinished_of(change.session, spec)
            is_new = row is None
            if row is None:
                if most_unfinished is not None:
                    _check_quota(change.session, owner, most_unfinished)
                row = self._add(change, spec, values)
            elif row.attached and not change.is_leased(row):
                _detach(change, row, budget, priority)
            if idempotency is not None:
                self._add_submission(change, idempotency, row.id)
            return Submitted(_jobs(change.session, [row])[0], is_new)

        return self._changed(submitted)

    @patient
    def submitted(self, idempotency: Idempotency) -> Submitted | None:
        with self.database.read() as session:
            return self._submitted(session, idempotency)

    @patient
    def open(self, spec: JobSpec, label: str, budget: Budget, holder: str, lease_s: float = LEASE_S) -> Lease | None:
        values = _new_values(spec, label, budget) | {"attached": True}

        def opened(change: Change) -> Lease | None:
            row = _unfinished_of(change.session, spec)
            if row is not None and row.state == JobState.RUNNING.value:
                if change.is_leased(row):
                    return None
                change.lose(row)
                if row.wish == Wish.CANCEL.value:
                    change.settle(row, JobState.CANCELLED)
                    change.session.flush()
                    row = None
            if row is None:
                row = self._add(change, spec, values)
            row.budget, row.attempts = budget.to_json(), 0  # who asks for it again wants it tried again
            return change.take(row, holder, lease_s)

        return self._changed(opened)

    # Under a lease

    @patient
    def waiting(self) -> list[Target | None]:
        with self.database.read() as session:
            chosen = select(JobRow.target_key).where(may_be_taken(self.database.now(session)))
            query = select(TargetRow).where(TargetRow.key.in_(chosen)).order_by(TargetRow.key)
            named = [Target.from_json(row.data) for row in session.scalars(query)]
            return [*named, None] if session.scalar(select(chosen.where(NO_TARGET).exists())) else [*named]

    @patient
    def lease(
        self, target_keys: Collection[str], holder: str, lease_s: float = LEASE_S, *, devices: Sequence[Target] = ()
    ) -> Lease | None:
        keys = sorted(set(target_keys))

        def leased(change: Change) -> Lease | None:
            unfit: list[int] = []  # jobs that wait for another device than these
            while row := change.session.scalar(next_to_take(change.now, keys, unfit if devices else None)):
                if row.target_key is None and not self._placed(change, row, devices):
                    unfit.append(row.id)
                elif row.state == JobState.QUEUED.value or change.requeue_lost(row):
                    return change.take(row, holder, lease_s)
                change.session.flush()
            return None

        return self._changed(leased)

    @patient_write
    def renew(
        self,
        write: str,
        lease: Lease,
        lease_s: float = LEASE_S,
        *,
        progress: Mapping[str, Any] | None = None,
        events: Sequence[NewEvent] = (),
        spent_s: float = 0.0,
    ) -> Wish | None:
        with changing(self.database) as change:
            row = change.held(lease, write)
            if row is None:
                row = change.job(lease.job_id)
            else:
                row.leased_until = change.until(lease_s)
                row.spent_s += spent_s
                if progress is not None:
                    row.progress = dict(progress)
                    self.database.announce(change.session)
                change.tell_all(row, events)
            return None if row.wish is None else Wish(row.wish)

    @patient_write
    def give_back(self, write: str, lease: Lease) -> None:
        with changing(self.database) as change:
            row = change.held(lease, write)
            if row is not None:
                row.attempts = max(0, row.attempts - 1)  # nothing was lost
                change.tell(row, EventKind.RETURNED, holder=row.holder)
                change.settle(row, JobState.PAUSED if row.attached else JobState.QUEUED)

    @patient_write
    def pause_leased(self, write: str, lease: Lease, *, result: Mapping[str, Any] | None = None) -> None:
        with changing(self.database) as change:
            row = change.held(lease, write)
            if row is not None:
                row.attempts = 0
                change.settle(row, JobState.PAUSED, result=result)

    @patient_write
    def finish(
        self,
        write: str,
        lease: Lease,
        state: JobState,
        *,
        result: Mapping[str, Any] | None = None,
        error: str = "",
    ) -> Job:
        if state in UNFINISHED:
            raise ValueError(f"{state} is no way for a job to end")
        with changing(self.database) as change:
            row = change.held(lease, write)
            if row is None:
                row = change.job(lease.job_id)
            else:
                change.settle(row, state, result=result, error=error)
            return _jobs(change.session, [row])[0]

    @patient
    def claim(self, lease: Lease, task_key: str) -> bool:
        try:
            with self.database.write_plainly() as connection:
                return claimed(self.database, connection, lease, task_key)
        except sql.IntegrityError as error:
            raise NotFound(f"{self.database}: there is no task {task_key}") from error

    @patient
    def release_claims(self, lease: Lease) -> None:
        with self.database.write_plainly() as connection:
            connection.execute(RELEASED, {"job": lease.job_id, "epoch": lease.epoch})
            self.database.announce(connection)

    # Steering

    @patient
    def pause(self, job_id: int) -> Job:
        with changing(self.database) as change:
            row = change.unfinished(job_id)
            if row.state == JobState.QUEUED.value:
                change.settle(row, JobState.PAUSED)
            elif row.state == JobState.RUNNING.value and row.wish is None:
                row.wish = Wish.PAUSE.value
                self._wished(change, row)
            return _jobs(change.session, [row])[0]

    @patient
    def resume(self, job_id: int) -> Job:
        with changing(self.database) as change:
            row = change.unfinished(job_id)
            if row.state == JobState.PAUSED.value:
                row.state, row.attached, row.attempts, row.updated_at = JobState.QUEUED.value, False, 0, change.now
                change.tell(row, EventKind.RESUMED)
            elif row.wish == Wish.PAUSE.value:
                row.wish = None
                change.tell(row, EventKind.CHANGED, wish=None)
            return _jobs(change.session, [row])[0]

    @patient
    def cancel(self, job_id: int) -> Job:
        with changing(self.database) as change:
            row = change.job(job_id)
            if row.state != JobState.CANCELLED.value:
                row = change.unfinished(job_id)
                if row.state != JobState.RUNNING.value:
                    change.settle(row, JobState.CANCELLED)
                elif row.wish != Wish.CANCEL.value:
                    row.wish = Wish.CANCEL.value
                    self._wished(change, row)
            return _jobs(change.session, [row])[0]

    @patient
    def prioritise(self, job_id: int, priority: int) -> Job:
        with changing(self.database) as change:
            row = change.unfinished(job_id)
            if row.priority != priority:
                row.priority = priority
                change.tell(row, EventKind.CHANGED, priority=priority)
            return _jobs(change.session, [row])[0]

    # Looking

    @patient
    def get(self, job_id: int) -> Job:
        with self.database.read() as session:
            return _jobs(session, [self._row(session, job_id)])[0]

    @patient
    def events(
        self,
        job_id: int,
        after: int = 0,
        limit: int = 1000,
        *,
        kinds: Collection[EventKind] | None = None,
        every: int = 1,
    ) -> list[Event]:
        query = select(EventRow.number, EventRow.kind, EventRow.data, EventRow.created_at)
        query = query.where(EventRow.job_id == job_id, EventRow.number > after)
        if kinds is not None:
            query = query.where(EventRow.kind.in_([kind.value for kind in kinds]))
        if every > 1:
            query = query.where(EventRow.number % every == 0)
        with self.database.read() as session:
            self._newest_event(session, job_id)
            rows = session.execute(query.order_by(EventRow.number).limit(limit))
            return [Event(job_id, number, EventKind(kind), data, when) for number, kind, data, when in rows]

    @patient
    def last_of(self, task_keys: Collection[str], target_key: str) -> Job | None:
        if not task_keys:
            return None
        wanted = set(task_keys)
        ended = (JobState.SUCCEEDED.value, JobState.PAUSED.value)
        some = (
            select(JobRow.id)
            .join(JobTaskRow, JobTaskRow.job_id == JobRow.id)
            .where(JobTaskRow.task_key == min(wanted), JobRow.target_key == target_key, JobRow.state.in_(ended))
            .where(JobRow.result.is_not(null()))
            .order_by(JobRow.id.desc())
            .limit(LOOKED_AT)
        )
        with self.database.read() as session:
            found: dict[int, set[str]] = {job_id: set() for job_id in session.scalars(some)}
            parts = select(JobTaskRow.job_id, JobTaskRow.task_key).where(JobTaskRow.job_id.in_(found))
            for job_id, task_key in session.execute(parts):
                found[job_id].add(task_key)
            match = next((job_id for job_id, keys in found.items() if keys == wanted), None)
            return None if match is None else _jobs(session, [self._row(session, match)])[0]

    @patient
    def wish(self, job_id: int) -> Wish | None:
        with self.database.read() as session:
            found = session.execute(select(JobRow.wish).where(JobRow.id == job_id)).one_or_none()
        if found is None:
            raise NotFound(f"{self.database}: there is no job {job_id}")
        return None if found.wish is None else Wish(found.wish)

    @patient
    def newest_event(self, job_id: int) -> int:
        with self.database.read() as session:
            return self._newest_event(session, job_id)

    @patient
    def trials(self, job_id: int, after: int = -1, limit: int | None = None) -> list[Trial]:
        query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.ordinal > after)
        with self.database.read() as session:
            self._row(session, job_id)
            rows = session.scalars(query.order_by(TrialRow.ordinal).limit(limit))
            return [Trial(row.ordinal or 0, row.created_at, to_record(row)) for row in rows]

    @patient
    def statuses(self, job_id: int) -> dict[Status, int]:
        query = select(TrialRow.status, func.count()).where(TrialRow.job_id == job_id).group_by(TrialRow.status)
        with self.database.read() as session:
            self._row(session, job_id)
            return {Status(status): count for status, count in session.execute(query)}

    @patient
    def counts(self) -> dict[JobState, int]:
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        with self.database.read() as session:
            found = dict(session.execute(query).all())
        return {state: found.get(state.value, 0) for state in JobState}

    @patient
    def oldest_queued_s(self) -> float | None:
        with self.database.read() as session:
            since = session.scalar(select(func.min(JobRow.updated_at)).where(JobRow.state == JobState.QUEUED.value))
            return None if since is None else max(0.0, (self.database.now(session) - since).total_seconds())

    def changes(self) -> int:
        return self.database.bell.rings

    def wait(self, timeout_s: float, since: int | None = None) -> bool:
        return self.database.bell.wait(timeout_s, since)

    @patient
    def list(
        self,
        states: Collection[JobState] | None = None,
        *,
        model: str | None = None,
        model_sha256: str | None = None,
        target_key: str | None = None,
        owner: str | None = None,
        before_id: int | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        query = select(JobRow).order_by(JobRow.id.desc()).limit(limit)
        if states is not None:
            query = query.where(JobRow.state.in_([state.value for state in states]))
        if before_id is not None:
            query = query.where(JobRow.id < before_id)
        if model is not None:
            named = JobRow.label.icontains(clean(model), autoescape=True)
            query = query.where(named | JobRow.model_sha256.startswith(clean(model).lower(), autoescape=True))
        for column, value in (
            (JobRow.model_sha256, model_sha256),
            (JobRow.target_key, target_key),
            (JobRow.owner, owner),
        ):
            if value is not None:
                query = query.where(column == value)
        with self.database.read() as session:
            return _jobs(session, [*session.scalars(query)])

    # Within a transaction

    def _row(self, session: Session, job_id: int) -> JobRow:
        row = session.get(JobRow, job_id)
        if row is None:
            raise NotFound(f"{self.database}: there is no job {job_id}")
        return row

    def _newest_event(self, session: Session, job_id: int) -> int:
        """See `newest_event`. Without the rest of the row: a report may be long."""
        count = session.scalar(select(JobRow.events).where(JobRow.id == job_id))
        if count is None:
            raise NotFound(f"{self.database}: there is no job {job_id}")
        return count

    def _submitted(self, session: Session, idempotency: Idempotency) -> Submitted | None:
        """See `submitted`."""
        submission = session.get(SubmissionRow, (idempotency.owner, idempotency.name))
        if submission is None:
            return None
        if submission.fingerprint != idempotency.fingerprint:
            raise Conflict("the idempotency key came with another request before")
        row = self._row(session, submission.job_id)
        return Submitted(_jobs(session, [row])[0], is_new=row.created_at == submission.created_at)  # one transaction's

    def _changed(self, work: Callable[[Change], Result]) -> Result:
        """What `work` returns, done in a transaction; again where another process was in the way."""
        while True:
            try:
                with changing(self.database) as change:
                    return work(change)
            except _Raced:
                continue
            except sql.IntegrityError as error:
                raise NotFound(f"{self.database}: the target or a task of the job is not stored") from error

    def _add(self, change: Change, spec: JobSpec, values: dict[str, Any]) -> JobRow:
        """A new job, queued. Raises _Raced where an unfinished one of the spec appeared in between."""
        values = values | {"created_at": change.now, "updated_at": change.now}
        if not self.database.add(change.session, JobRow, ["spec_key"], [values], IS_UNFINISHED):
            raise _Raced
        row = change.session.scalars(
            select(JobRow).where(JobRow.spec_key == spec.key, IS_UNFINISHED).with_for_update()
        ).one()
        change.session.add_all(
            JobTaskRow(job_id=row.id, position=i, task_key=task.task_key, occurrences=task.occurrences)
            for i, task in enumerate(spec.tasks)
        )
        change.tell(row, EventKind.QUEUED, label=row.label, priority=row.priority, budget=row.budget)
        change.session.flush()
        return row

    def _add_submission(self, change: Change, idempotency: Idempotency, job_id: int) -> None:
        values = {
            "owner": idempotency.owner,
            "name": idempotency.name,
            "fingerprint": idempotency.fingerprint,
            "job_id": job_id,
            "created_at": change.now,
        }
        if not self.database.add(change.session, SubmissionRow, ["owner", "name"], [values]):
            raise _Raced

    def _serialise(self, session: Session, owner: str) -> None:
        """Let one submission of an owner after the other count the jobs. On SQLite all writers are one by one."""
        if not self.database.is_sqlite:
            session.execute(select(func.pg_advisory_xact_lock(LOCK, func.hashtext(owner))))

    def _placed(self, change: Change, row: JobRow, devices: Sequence[Target]) -> bool:
        """Make a job that waits for any device one for the first of these that will do. False where none does."""
        waiting = _jobs(change.session, [row])[0].spec
        for spec, target in filter(None, map(waiting.on, devices)):
            equal = select(JobRow.id).where(JobRow.spec_key == spec.key, IS_UNFINISHED)
            if change.session.scalar(equal) is None:
                self.database.add(change.session, TargetRow, ["key"], [target_values(target)])
                row.target_key, row.settings, row.spec_key = target.key, spec.settings, spec.key
                try:
                    change.session.flush()
                except sql.IntegrityError as error:  # an equal one came in between
                    raise _Raced from error
                return True
        return False

    def _wished(self, change: Change, row: JobRow) -> None:
        """Tell a running job's holder what is wished; do it where there is none any more."""
        if change.is_leased(row):
            change.tell(row, EventKind.CHANGED, wish=row.wish)
        else:
            change.lose(row)
            change.settle(row, JobState.QUEUED)


def _new_values(spec: JobSpec, label: str, budget: Budget) -> dict[str, Any]:
    """The columns of a JobRow that nobody has taken up."""
    return {
        "spec_key": spec.key,
        "model_sha256": spec.model_sha256,
        "target_key": spec.target_key or None,
        "label": clean(label),
        "settings": spec.settings,
        "state": JobState.QUEUED.value,
        "result": None,
        "budget": budget.to_json(),
        "attached": False,
        "priority": 0,
        "spent_s": 0.0,
        "attempts": 0,
        "epoch": 0,
        "holder": "",
        "leased_until": None,
        "not_before": None,
        "wish": None,
        "progress": None,
        "error": "",
        "owner": "",
        "events": 0,
        "written": "",
    }


def _unfinished_of(session: Session, spec: JobSpec) -> JobRow | None:
    return session.scalar(select(JobRow).where(JobRow.spec_key == spec.key, IS_UNFINISHED).with_for_update())


def _check_quota(session: Session, owner: str, most_unfinished: int) -> None:
    query = select(func.count()).select_from(JobRow).where(JobRow.owner == owner, IS_UNFINISHED)
    if (session.scalar(query) or 0) >= most_unfinished:
        raise QuotaExceeded(f"there are {most_unfinished} unfinished jobs, as many as one may have")


def _detach(change: Change, row: JobRow, budget: Budget, priority: int) -> None:
    """Queue a job that a command left behind."""
    if row.state == JobState.RUNNING.value:
        change.lose(row)
    row.attached, row.budget, row.priority, row.attempts, row.wish = False, budget.to_json(), priority, 0, None
    change.settle(row, JobState.QUEUED)
    change.tell(row, EventKind.RESUMED)


def _jobs(session: Session, rows: list[JobRow]) -> list[Job]:
    session.flush()
    tasks: dict[int, list[JobTask]] = {row.id: [] for row in rows}
    for ids in batches(tasks, KEYS_AT_ONCE):
        query = select(JobTaskRow).where(JobTaskRow.job_id.in_(ids)).order_by(JobTaskRow.job_id, JobTaskRow.position)
        for row in session.scalars(query):
            tasks[row.job_id].append(JobTask(row.task_key, row.occurrences))
    return [to_job(row, tuple(tasks[row.id])) for row in rows]
