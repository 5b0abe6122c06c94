"""JobReader: queries of the queue and its history, which change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from math import inf
from typing import Any, TypeVar

from sqlalchemy import Row, exists, func, null, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tunewright.search_space.measurement import Status

from .bounds import LARGEST_ID
from .database import KEYS_AT_ONCE, DatabasePart, batches, read_session
from .errors import NotFound
from .job import GRAPH, Event, EventKind, Job, JobSpec, JobState, Orders, SearchBudget, SpecTask, Trial, Wish
from .leases import job_row
from .pruned_of_job import PrunedOfJob, told_progress
from .tables import EventRow, JobRow, JobTagRow, JobTaskRow, TrialRow
from .translate import clean, from_row, to_record

Value = TypeVar("Value")

MAX_CANDIDATES = 64
"""Newest jobs with a common task that are compared by all their tasks."""

TRIALS = (
    select(func.coalesce(func.max(TrialRow.ordinal) + 1, 0))
    .where(TrialRow.job_id == JobRow.id)
    .correlate(JobRow)
    .scalar_subquery()
)
"""The number of trials of a job: one look into an index, however many there are."""


class JobReader(DatabasePart):
    """The reading methods of `Jobs`."""

    look_s = 1.0
    """Seconds between two reports of a job's progress, and between two looks at what people want of it."""

    @read_session
    def get(self, session: Session, job_id: int) -> Job:
        """The job of an id. Raises NotFound."""
        return jobs_of(session, [job_row(self.database, session, job_id)])[0]

    @read_session
    def events(
        self,
        session: Session,
        job_id: int,
        after: int = 0,
        limit: int | None = 1000,
        *,
        kinds: Collection[EventKind] | None = None,
        every: int = 1,
    ) -> list[Event]:
        """The events of a job with a higher number than `after`, in order. Raises NotFound.

        Where given, only events of these kinds, and of numbers that `every` divides.
        """
        query = select(EventRow.number, EventRow.kind, EventRow.data, EventRow.created_at)
        query = query.where(EventRow.job_id == job_id, EventRow.number > after)
        if kinds is not None:
            query = query.where(EventRow.kind.in_([kind.value for kind in kinds]))
        if every > 1:
            query = query.where(EventRow.number % every == 0)
        self._column(session, job_id, JobRow.id)  # raises NotFound
        rows = session.execute(query.order_by(EventRow.number).limit(limit))
        return [Event(job_id, number, EventKind(kind), data, created_at) for number, kind, data, created_at in rows]

    @read_session
    def graph(self, session: Session, job: Job) -> Any:
        """The graph of the tasks of a job's model, plain data that may be long: as it came with the job, or else with
        the newest other one of the same model and tasks. None where it came with none of them.
        """
        own = _graph(session, job.id)
        if own is not None or not job.spec.model_sha256 or not job.spec.tasks:
            return own
        others = (
            select(JobRow.id)
            .where(JobRow.model_sha256 == job.spec.model_sha256, JobRow.id != job.id)
            .order_by(JobRow.id.desc())
            .limit(MAX_CANDIDATES)
        )
        tasks = list(job.spec.tasks)
        for row in session.scalars(select(JobRow).where(JobRow.id.in_(others)).order_by(JobRow.id.desc())).all():
            graph = _graph(session, row.id)
            if graph is not None and list(jobs_of(session, [row])[0].spec.tasks) == tasks:
                return graph
        return None

    @read_session
    def last_for_tasks(self, session: Session, task_keys: Collection[str], target_key: str) -> Job | None:
        """The newest job with a result for exactly these tasks on a target; None where there is none.

        Those whose model was timed on a busy machine, which `noise` in the result tells, count where there is no other.
        So models that differ only in their weights, or in having them, share their jobs. Those of tasks without a model
        say nothing of any.
        """
        if not task_keys:
            return None
        expected_keys = set(task_keys)
        states = (JobState.SUCCEEDED.value, JobState.PAUSED.value)
        noise = func.coalesce(JobRow.result["noise"].as_string(), "")
        candidates = (
            select(JobRow.id, noise != "")
            .join(JobTaskRow, JobTaskRow.job_id == JobRow.id)
            .where(JobTaskRow.task_key == min(expected_keys), JobRow.target_key == target_key, JobRow.state.in_(states))
            .where(JobRow.result.is_not(null()), JobRow.model_sha256 != "")
            .order_by(JobRow.id.desc())
            .limit(MAX_CANDIDATES)
        )
        is_noisy = {job_id: bool(noisy) for job_id, noisy in session.execute(candidates)}
        order = sorted(is_noisy, key=lambda job_id: (is_noisy[job_id], -job_id))
        tasks: dict[int, set[str]] = {job_id: set() for job_id in order}
        task_rows = select(JobTaskRow.job_id, JobTaskRow.task_key).where(JobTaskRow.job_id.in_(tasks))
        for job_id, task_key in session.execute(task_rows):
            tasks[job_id].add(task_key)
        match = next((job_id for job_id, keys in tasks.items() if keys == expected_keys), None)
        return None if match is None else jobs_of(session, [job_row(self.database, session, match)])[0]

    @read_session
    def orders(self, session: Session, job_id: int) -> Orders:
        """What people want of a job; cheap. Raises NotFound."""
        return orders_of(*self._columns(session, job_id, JobRow.wish, JobRow.budget))

    @read_session
    def newest_event(self, session: Session, job_id: int) -> int:
        """The number of the job's newest event, which is their count. Raises NotFound."""
        return self._column(session, job_id, JobRow.events)

    @read_session
    def trials(self, session: Session, job_id: int, after: int = -1, limit: int | None = None) -> list[Trial]:
        """The trials of a job in order, from behind the ordinal `after` on. Raises NotFound."""
        query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.ordinal > after)
        self._column(session, job_id, JobRow.id)  # raises NotFound
        rows = session.scalars(query.order_by(TrialRow.ordinal).limit(limit))
        return [Trial(row.ordinal or 0, row.created_at, to_record(row)) for row in rows]

    @read_session
    def tried_at(self, session: Session, job_id: int) -> dict[tuple[str, str], datetime]:
        """(task key, schedule key) of each trial of a job -> when it was stored. Raises NotFound."""
        self._column(session, job_id, JobRow.id)  # raises NotFound
        query = select(TrialRow.task_key, TrialRow.schedule_key, TrialRow.created_at).where(TrialRow.job_id == job_id)
        return {(row.task_key, row.schedule_key): row.created_at for row in session.execute(query)}

    @read_session
    def statuses(self, session: Session, job_id: int) -> dict[Status, int]:
        """Numbers of trials of a job by status, also those that were removed; only statuses that occurred.

        Raises NotFound.
        """
        query = select(TrialRow.status, func.count()).where(TrialRow.job_id == job_id).group_by(TrialRow.status)
        progress = self._column(session, job_id, JobRow.progress)  # raises NotFound
        counts = Counter({Status(status): count for status, count in session.execute(query)})
        for pruned in PrunedOfJob.of(progress).trials.values():
            counts.update(pruned)
        return dict(counts)

    @read_session
    def counts(self, session: Session) -> dict[JobState, int]:
        """Numbers of jobs in each state, zeros too."""
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        counts = dict(session.execute(query).all())
        return {state: counts.get(state.value, 0) for state in JobState}

    @read_session
    def outcomes(self, session: Session) -> dict[tuple[str, bool], int]:
        """Numbers of succeeded jobs by `outcome` of their result, and by whether it has any `noise`.

        The outcome is empty where the result has none.
        """
        texts = (func.coalesce(JobRow.result[name].as_string(), "").label(name) for name in ("outcome", "noise"))
        outcomes = select(*texts).where(JobRow.state == JobState.SUCCEEDED.value).subquery()
        noisy = (outcomes.c.noise != "").label("noisy")
        pairs = select(
            outcomes.c.outcome, noisy
        ).subquery()  # PostgreSQL groups by columns, not by what holds parameters
        query = select(pairs, func.count()).group_by(pairs.c.outcome, pairs.c.noisy)
        return {(outcome, bool(is_noisy)): count for outcome, is_noisy, count in session.execute(query)}

    @read_session
    def peak_gflops(self, session: Session, target_key: str) -> float | None:
        """The highest GFLOP/s of a target that its newest jobs measured; None where none did.

        A peak can only be underestimated, by what else the machine did meanwhile.
        """
        peak = JobRow.result["peak_gflops"].as_string()
        query = select(peak).where(JobRow.target_key == target_key, JobRow.result.is_not(null()), peak.is_not(None))
        texts = session.scalars(query.order_by(JobRow.id.desc()).limit(MAX_CANDIDATES))
        return max(filter(None, map(_positive, texts)), default=None)

    @read_session
    def oldest_queued_s(self, session: Session) -> float | None:
        """Seconds that the oldest queued job has waited; None where none waits."""
        since = session.scalar(select(func.min(JobRow.updated_at)).where(JobRow.state == JobState.QUEUED.value))
        return None if since is None else max(0.0, (self.database.now(session) - since).total_seconds())

    def changes(self) -> int:
        """A number that grows when any process may have changed a job. For `wait`: read it before the jobs."""
        return self.database.notifier.count

    def wait(self, timeout_s: float, since: int | None = None) -> bool:
        """Wait until any process may have changed a job. False on a timeout.

        Changes after the number `since` (of `changes`) end it at once; by default changes after the last wait of this
        thread, so that a loop that reads and waits misses none. Changes are events, progress, released claims, and
        tuners that come or go. Expired leases and jobs that may be tried again are none: so wait a few seconds, not for
        ever.

        On PostgreSQL a notification ends it at once; on SQLite a change of the file is noticed within 0.2 s. It may end
        early without reason; it never raises for a database that can't be reached, but waits the time.
        """
        return self.database.notifier.wait(timeout_s, since)

    @read_session
    def list(
        self,
        session: Session,
        states: Collection[JobState] | None = None,
        *,
        model: str | None = None,
        model_sha256: str | None = None,
        target_key: str | None = None,
        owner: str | None = None,
        tags: Collection[str] = (),
        search: str | None = None,
        before_id: int | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs that meet all conditions given, the newest first, with an id below `before_id`, at most `limit`.

        `model` is text in the label, in any case, or the begin of the model's digest; `search` is text in the label, a
        tag or the notes, in any case. They have all of the `tags`.
        """
        query = select(JobRow).order_by(JobRow.id.desc()).limit(limit)
        if states is not None:
            query = query.where(JobRow.state.in_([state.value for state in states]))
        if before_id is not None:
            query = query.where(JobRow.id < before_id)
        if model is not None:
            is_in_label = JobRow.label.icontains(clean(model), autoescape=True)
            query = query.where(is_in_label | JobRow.model_sha256.startswith(clean(model).lower(), autoescape=True))
        if search is not None:
            texts = (JobRow.label, JobRow.notes, JobTagRow.tag)
            in_label, in_notes, is_in = (text.icontains(clean(search), autoescape=True) for text in texts)
            query = query.where(in_label | in_notes | exists().where(JobTagRow.job_id == JobRow.id, is_in))
        for tag in dict.fromkeys(tags):
            query = query.where(exists().where(JobTagRow.job_id == JobRow.id, JobTagRow.tag == clean(tag)))
        for column, value in (
            (JobRow.model_sha256, model_sha256),
            (JobRow.target_key, target_key),
            (JobRow.owner, owner),
        ):
            if value is not None:
                query = query.where(column == value)
        return jobs_of(session, [*session.scalars(query)])

    # Within a transaction

    def _column(self, session: Session, job_id: int, column: InstrumentedAttribute[Value]) -> Value:
        """A column of a job, without the rest of the row: a report may be long. Raises NotFound."""
        value: Value = self._columns(session, job_id, column)[0]
        return value

    def _columns(self, session: Session, job_id: int, *columns: InstrumentedAttribute[Any]) -> Row[*tuple[Any, ...]]:
        """Several of them."""
        is_possible = 0 < job_id <= LARGEST_ID
        row = session.execute(select(*columns).where(JobRow.id == job_id)).one_or_none() if is_possible else None
        if row is None:
            raise NotFound(f"{self.database}: there is no job {job_id}")
        return row


def jobs_of(session: Session, rows: list[JobRow]) -> list[Job]:
    """The jobs of these rows, with their tasks and tags."""
    session.flush()
    tasks: dict[int, list[SpecTask]] = {row.id: [] for row in rows}
    tags: dict[int, list[str]] = {row.id: [] for row in rows}
    trials: dict[int, int] = {}
    for ids in batches(tasks, KEYS_AT_ONCE):
        query = select(JobTaskRow).where(JobTaskRow.job_id.in_(ids)).order_by(JobTaskRow.job_id, JobTaskRow.position)
        for row in session.scalars(query):
            tasks[row.job_id].append(SpecTask(row.task_key, row.occurrences))
        for tag_row in session.scalars(select(JobTagRow).where(JobTagRow.job_id.in_(ids))):
            tags[tag_row.job_id].append(tag_row.tag)
        trials |= dict(session.execute(select(JobRow.id, TRIALS).where(JobRow.id.in_(ids))).all())
    return [
        from_row(
            Job,
            row,
            spec=JobSpec(row.model_sha256, row.target_key or "", tuple(tasks[row.id]), dict(row.settings)),
            state=JobState(row.state),
            budget=SearchBudget.from_json(row.budget),
            progress=told_progress(row.progress),
            trials=trials[row.id],
            wish=Wish(row.wish) if row.wish else None,
            tags=tuple(sorted(tags[row.id])),
        )
        for row in rows
    ]


def _graph(session: Session, job_id: int) -> Any:
    """The graph that came with a job, which its first event has; None where none did."""
    data = session.scalar(select(EventRow.data).where(EventRow.job_id == job_id, EventRow.number == 1))
    return data.get(GRAPH) if data else None


def orders_of(wish: str | None, budget: Mapping[str, Any]) -> Orders:
    """What people want of a job, of these columns."""
    return Orders(None if wish is None else Wish(wish), SearchBudget.from_json(budget))


def _positive(figure: object) -> float | None:
    """A number above 0 out of a report; None for anything else."""
    try:
        value = float(str(figure))
    except ValueError:
        return None
    return value if 0.0 < value < inf else None
