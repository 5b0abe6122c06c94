"""Jobs: the queue of tuning jobs, their leases and their history.

Leases decide who may write: each carries an epoch that grows with every lease of the job, and every write under a lease
checks that epoch in its own transaction (a fencing token). A process that hung, lost the network or seemed dead can
change nothing once another one has its job. How a job changes hands is in `leases`, how a new one
is added in `new_jobs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy import exc as sql
from sqlalchemy.orm import Session

from tunewright.codegen.target import Target

from .bounds import LARGEST_ID
from .database import read_session, retry, retry_write
from .errors import NotFound
from .job import (
    LEASE_S,
    RETIME,
    UNFINISHED,
    Conflict,
    EventKind,
    Idempotency,
    Job,
    JobEdit,
    JobSpec,
    JobState,
    Lease,
    NewEvent,
    NoSuchBound,
    Orders,
    SearchBudget,
    Submission,
    Wish,
    check_tags,
)
from .job_edits import clean_notes, detach, edit_job, raise_budget
from .job_reader import JobReader, jobs_of, orders_of
from .leases import NO_TARGET, Change, begin_change, change_jobs, claim_task, is_available, next_job, obey
from .new_jobs import (
    add_job,
    add_submission,
    assign_device,
    change_queue,
    find_submission,
    join_or_add,
    keep_number,
    new_values,
    unfinished_row,
)
from .pruned_of_job import told_progress
from .tables import (
    ClaimRow,
    CostModelRow,
    EventRow,
    JobRow,
    JobTagRow,
    JobTaskRow,
    SubmissionRow,
    TargetRow,
    TrialRow,
    TunerRow,
)
from .translate import clean, to_target
from .uploads import mark_used

RELEASE_CLAIMS = delete(ClaimRow).where(ClaimRow.job_id == bindparam("job"), ClaimRow.epoch == bindparam("epoch"))
"""Delete the claims of a lease."""


class Jobs(JobReader):
    """The queue of tuning jobs and their history, shared by any number of processes.

    Times are the database's: clocks of the processes need not agree. Each method is one transaction, which also writes
    the event of the change and wakes threads in `wait`. A method may be called again after a lost connection: nothing
    happens twice, except that a lease may be begun that no process holds, and expires.

    Every method may raise StoreError, and then has changed nothing. `tests/db/test_jobs.py` is its conformance suite.
    """

    # Submission

    @retry
    def submit(
        self,
        spec: JobSpec,
        label: str,
        budget: SearchBudget,
        *,
        priority: int = 0,
        owner: str = "",
        tags: Collection[str] = (),
        notes: str = "",
        idempotency: Idempotency | None = None,
        most_unfinished: int | None = None,
        is_uploaded: bool = False,
        graph: Mapping[str, Any] | None = None,
    ) -> Submission:
        """Queue a job; an unfinished one of the same spec is returned as it is.

        But a job of a command (attached) that has no lease is resumed (`resume`). `is_uploaded`: its model must be
        among the uploads, and stays there while the job is unfinished. `graph` is that of the model's tasks, plain
        data, which is kept with a new job.

        Raises NotFound where the target, a task or the model is unknown, Conflict where the idempotency key came with
        another fingerprint, QuotaExceeded where the owner has `most_unfinished` unfinished jobs, ValueError as
        `check_tags` and `check_notes`.
        """
        values = new_values(spec, label, budget) | {"priority": priority, "owner": owner, "notes": clean_notes(notes)}
        tags = check_tags(tags)

        def work(change: Change) -> Submission:
            if idempotency is not None and (submission := find_submission(change.session, idempotency)) is not None:
                return submission
            if is_uploaded and not mark_used(change.session, spec.model_sha256, change.now):
                raise NotFound(f"there is no model {spec.model_sha256}")
            row, is_new = join_or_add(change, spec, values, tags, most_unfinished, graph)
            if idempotency is not None:
                add_submission(change, idempotency, row.id)
            return Submission(jobs_of(change.session, [row])[0], is_new)

        return change_queue(self.database, work)

    @retry
    def extend(
        self,
        job_id: int,
        idempotency: Idempotency,
        *,
        trials: int | None = None,
        seconds: float | None = None,
        most_unfinished: int | None = None,
    ) -> Submission:
        """Have a job go on for so many more trials, so many more seconds of searching, or both.

        The budget of an unfinished job grows in place, and its holder takes that over; a paused one whose time was over
        is queued. A finished job stays as it is: a new one of its spec goes on from its trials, with this budget alone,
        for the owner in `idempotency`; where an unfinished one has that spec, its budget grows.

        Raises NotFound, NoSuchBound where what ends the search is another bound, Conflict where the idempotency key
        came with another fingerprint, QuotaExceeded where the owner has `most_unfinished` unfinished jobs.
        """

        def work(change: Change) -> Submission:
            if (submission := find_submission(change.session, idempotency)) is not None:
                return submission
            row, is_new = change.job(job_id), False
            if RETIME in row.settings:
                raise NoSuchBound(job_id, SearchBudget.from_json(row.budget))
            if JobState(row.state) not in UNFINISHED:
                job = jobs_of(change.session, [row])[0]
                values = new_values(job.spec, job.label, SearchBudget(trials, inf if seconds is None else seconds))
                values |= {"priority": job.priority, "owner": idempotency.owner}
                row, is_new = join_or_add(change, job.spec, values, job.tags, most_unfinished)
            if not is_new:
                raise_budget(change, row, trials, seconds)
            add_submission(change, idempotency, row.id)
            return Submission(jobs_of(change.session, [row])[0], is_new)

        return change_queue(self.database, work)

    @read_session
    def submission(self, session: Session, idempotency: Idempotency) -> Submission | None:
        """The submission of this name, as it stands; None where it is unknown (yet).

        Raises Conflict where the name came with another fingerprint.
        """
        return find_submission(session, idempotency)

    @retry
    def open(
        self,
        spec: JobSpec,
        label: str,
        budget: SearchBudget,
        holder: str,
        lease_s: float = LEASE_S,
        *,
        graph: Mapping[str, Any] | None = None,
    ) -> Lease | None:
        """Take up the unfinished job of a spec, or a new one that is `attached`, with this budget; `graph` as `submit`.

        The number of earlier losses does not matter. But a lost job that is to be cancelled ends, and a new one is
        made. None where another process has it leased. Raises NotFound where the target or a task is unknown.
        """
        values = new_values(spec, label, budget) | {"attached": True}

        def work(change: Change) -> Lease | None:
            row = unfinished_row(change.session, spec)
            if row is not None and row.state == JobState.RUNNING.value:
                if change.is_leased(row):
                    return None
                change.end_lease(row)
                if row.wish == Wish.CANCEL.value:
                    change.settle(row, JobState.CANCELLED)
                    change.session.flush()
                    row = None
            if row is None:
                row = add_job(change, spec, values, graph=graph)
            row.budget = replace(budget, before_s=row.spent_s or 0.0).to_json()
            row.attempts = 0  # an explicit request may try again
            return change.begin_lease(row, holder, lease_s)

        return change_queue(self.database, work)

    # Under a lease

    @read_session
    def queued_targets(self, session: Session) -> list[Target | None]:
        """The targets with a job that `lease` would find now; None among them for jobs that wait for any device."""
        target_keys = select(JobRow.target_key).where(is_available(self.database.now(session)))
        query = select(TargetRow).where(TargetRow.key.in_(target_keys)).order_by(TargetRow.key)
        targets = [to_target(row.data) for row in session.scalars(query)]
        return [*targets, None] if session.scalar(select(target_keys.where(NO_TARGET).exists())) else [*targets]

    @retry
    def lease(
        self, target_keys: Collection[str], holder: str, lease_s: float = LEASE_S, *, devices: Sequence[Target] = ()
    ) -> Lease | None:
        """Take the next job: for these targets, of the highest priority, the oldest of them.

        A job that waits for any device is among them if one of `devices` suits it: it becomes a job for the target of
        the first such device, for good. It goes on waiting while another unfinished job would have the same spec.

        Both queued jobs and running ones with an expired lease count (as an attempt of the latter; with a wish or
        without attempts left they end instead, and the next job is taken). Attached jobs are left alone.
        """
        keys = sorted(set(target_keys))

        def work(change: Change) -> Lease | None:
            unfit: list[int] = []  # ids of jobs that these devices don't suit
            while row := change.session.scalar(next_job(change.now, keys, unfit if devices else None)):
                if row.target_key is None and not assign_device(change, row, devices):
                    unfit.append(row.id)
                elif row.state == JobState.QUEUED.value or change.requeue_lost(row):
                    return change.begin_lease(row, holder, lease_s)
                change.session.flush()
            return None

        return change_queue(self.database, work)

    @retry_write
    def renew(
        self,
        write: str,
        lease: Lease,
        lease_s: float = LEASE_S,
        *,
        progress: Mapping[str, Any] | None = None,
        events: Sequence[NewEvent] = (),
        spent_s: float = 0.0,
    ) -> Orders:
        """Renew the lease, and store progress and events; `spent_s` is added. What people want of the job.

        An expired lease is in force again, unless another process has taken the job up. Raises LeaseLost, and
        ValueError for seconds that nothing takes.
        """
        if not 0 <= spent_s < LARGEST_ID:
            raise ValueError(f"{spent_s} s is no time that was spent")
        with begin_change(self.database) as change:
            row = change.leased_job(lease, write)
            if row is None:
                row = change.job(lease.job_id)
            else:
                row.leased_until = change.lease_end(lease_s)
                row.spent_s += spent_s
                if progress is not None:
                    row.progress = told_progress(progress)
                    self.database.announce(change.session)
                change.add_events(row, events)
            return orders_of(row.wish, row.budget)

    @retry_write
    def give_back(self, write: str, lease: Lease) -> None:
        """End the lease without ending the job: it is queued again, or paused if it is attached.

        This counts as no attempt. A wish to pause or cancel is carried out. Raises LeaseLost.
        """
        with begin_change(self.database) as change:
            row = change.leased_job(lease, write)
            if row is not None:
                row.attempts = max(0, row.attempts - 1)  # it was no loss
                state = obey(row, JobState.PAUSED if row.attached else JobState.QUEUED)
                change.add_event(row, EventKind.RETURNED, holder=row.holder, state=state.value)
                change.settle(row, state)

    @change_jobs
    def take_from(self, change: Change, holder: str) -> None:
        """End the leases of a process that has died, as who started it knows: as when they expire, but at once."""
        is_held = JobRow.state == JobState.RUNNING.value, JobRow.attached.is_(False), JobRow.holder == clean(holder)
        query = select(JobRow).where(*is_held)
        for row in change.session.scalars(query.with_for_update()).all():
            if change.requeue_lost(row):
                change.settle(row, JobState.QUEUED)

    @retry_write
    def pause_leased(
        self,
        write: str,
        lease: Lease,
        *,
        result: Mapping[str, Any] | None = None,
        budget: SearchBudget | None = None,
    ) -> Job:
        """End the lease and pause the job, or end it if that is wished. Raises LeaseLost.

        `result` is its result so far. Where its `budget` is another by now than the one given, the job stays as it is.
        """
        with begin_change(self.database) as change:
            row = change.leased_job(lease, write)
            if row is None:
                row = change.job(lease.job_id)
            elif not _is_raised(row, budget):
                row.attempts = 0
                change.settle(row, JobState.PAUSED, result=result)
            return jobs_of(change.session, [row])[0]

    @retry_write
    def finish(
        self,
        write: str,
        lease: Lease,
        state: JobState,
        *,
        result: Mapping[str, Any] | None = None,
        error: str = "",
        budget: SearchBudget | None = None,
    ) -> Job:
        """End the lease and the job. Raises LeaseLost, and ValueError for a state that is not final.

        Where its `budget` is another by now than the one given, by which it was worked on, the job stays as it is.
        """
        if state in UNFINISHED:
            raise ValueError(f"{state} is no way for a job to end")
        with begin_change(self.database) as change:
            row = change.leased_job(lease, write)
            if row is None:
                row = change.job(lease.job_id)
            elif not _is_raised(row, budget):
                change.settle(row, state, result=result, error=error)
            return jobs_of(change.session, [row])[0]

    @retry
    def claim(self, lease: Lease, task_key: str) -> bool:
        """Claim a task of the job for this lease, so that no other job measures the same candidates meanwhile.

        False where another job with a lease in force has it. Claiming twice is harmless. Raises LeaseLost, and NotFound
        where the task is unknown.
        """
        try:
            with self.database.write_core() as connection:
                return claim_task(self.database, connection, lease, task_key)
        except sql.IntegrityError as error:
            raise NotFound(f"{self.database}: there is no task {task_key}") from error

    @retry
    def release_claims(self, lease: Lease) -> None:
        """Release the claims of a lease. The end of a lease releases them too."""
        with self.database.write_core() as connection:
            connection.execute(RELEASE_CLAIMS, {"job": lease.job_id, "epoch": lease.epoch})
            self.database.announce(connection)

    # Steering

    @change_jobs
    def pause(self, change: Change, job_id: int) -> Job:
        """Wish a running job to pause; pause one without a lease. A wish to cancel stays.

        Raises NotFound, and Conflict where it is finished.
        """
        row = change.unfinished_job(job_id)
        if row.state == JobState.QUEUED.value:
            change.settle(row, JobState.PAUSED)
        elif row.state == JobState.RUNNING.value and row.wish is None:
            row.wish = Wish.PAUSE.value
            self._pass_on_wish(change, row)
        return jobs_of(change.session, [row])[0]

    @change_jobs
    def resume(self, change: Change, job_id: int) -> Job:
        """Queue a paused job, for any process even if it was attached; or withdraw the wish to pause.

        An attached job keeps its budget, but the seconds, which were those of one run of its command, count from here
        on.

        Raises NotFound, and Conflict where it is finished.
        """
        row = change.unfinished_job(job_id)
        if row.state == JobState.PAUSED.value:
            detach(change, row)
        elif row.wish == Wish.PAUSE.value:
            row.wish = None
            change.add_event(row, EventKind.CHANGED, wish=None)
        return jobs_of(change.session, [row])[0]

    @change_jobs
    def cancel(self, change: Change, job_id: int) -> Job:
        """Wish a running job to end; end one without a lease. Raises NotFound, Conflict where it is finished.

        Cancelling a cancelled job is harmless.
        """
        row = change.job(job_id)
        if row.state != JobState.CANCELLED.value:
            row = change.unfinished_job(job_id)
            if row.state != JobState.RUNNING.value:
                change.settle(row, JobState.CANCELLED)
            elif row.wish != Wish.CANCEL.value:
                row.wish = Wish.CANCEL.value
                self._pass_on_wish(change, row)
        return jobs_of(change.session, [row])[0]

    @change_jobs
    def edit(self, change: Change, job_id: int, edit: JobEdit) -> Job:
        """Change what people call a job, and its priority.

        Raises NotFound, Conflict for the priority of a finished job, ValueError as `check_tags` and `check_notes`; then
        nothing is changed.
        """
        row = change.job(job_id)
        edit_job(change, row, edit)
        return jobs_of(change.session, [row])[0]

    @change_jobs
    def delete(self, change: Change, job_id: int) -> None:
        """Delete a finished job with its tasks, tags, events and idempotency names.

        What it has measured stays, as trials of no job. Raises NotFound, and Conflict where it is not finished.
        """
        row = change.job(job_id)
        if JobState(row.state) in UNFINISHED:
            raise Conflict(f"job {job_id} is {row.state}: cancel it first")
        session = change.session
        session.execute(update(TrialRow).where(TrialRow.job_id == job_id).values(job_id=None, ordinal=None))
        for kept in (CostModelRow, TunerRow):
            session.execute(update(kept).where(kept.job_id == job_id).values(job_id=None))
        for part in (ClaimRow, SubmissionRow, JobTagRow, EventRow, JobTaskRow):
            session.execute(delete(part).where(part.job_id == job_id))
        keep_number(self.database, session, job_id)
        session.execute(delete(JobRow).where(JobRow.id == job_id))
        self.database.announce(session)

    def _pass_on_wish(self, change: Change, row: JobRow) -> None:
        """Add an event about the wish for the holder; carry it out if there is none any more."""
        if change.is_leased(row):
            change.add_event(row, EventKind.CHANGED, wish=row.wish)
        else:
            change.end_lease(row)
            change.settle(row, JobState.QUEUED)


def _is_raised(row: JobRow, budget: SearchBudget | None) -> bool:
    """Whether a job's budget is another by now; it never is where None is given."""
    return budget is not None and SearchBudget.from_json(row.budget) != budget
