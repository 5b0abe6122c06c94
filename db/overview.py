"""Overview: what all jobs came to, in queries that stay cheap whatever the number of jobs, trials and events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from .database import KEYS_AT_ONCE, Database, DatabasePart, batches, read_session
from .job import Event, EventKind, JobState
from .tables import EventRow, JobRow

CURVE_POINTS = 24
"""Points of a job's curve."""

CURVES_KEPT = 1000
"""Curves that are kept in memory, each as long as its job has no new event."""

NEAR = 3
"""Events that are looked at around each point of a curve: not all of them tell of progress."""

REGRESSED_JOBS = 50
"""Jobs whose regressions are looked at: the newest ones that have any."""

Made = TypeVar("Made")

FIGURES = ("default_ms", "tuned_ms", "noise", "regressed", "outcome", "own_outcome")
"""What is read of a result."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What a job that succeeded came to, as texts: results are of any version."""

    job_id: int
    model_sha256: str  # empty: it has no model
    target_key: str
    dims: str  # sizes of the model's open dimensions, as JSON; empty: it has none
    default_ms: str  # of a run of the whole model; empty where that was not timed, as below
    tuned_ms: str
    noise: str  # why the machine was too busy to rely on the times; empty where it was not
    regressed: str  # how many tasks it confirmed to be slower than they were before
    outcome: str  # for the model as a whole; empty in results of older versions
    own_outcome: str  # of our kernels, which the times are of, where a vendor's runtime is taken; else empty


@dataclass(frozen=True, slots=True)
class NamedEvent:
    """An event with the name of its job."""

    event: Event
    label: str  # of the job, for people; hostile text is possible
    target_key: str


@dataclass(frozen=True, slots=True)
class _KeptFigures:
    """The figures of all jobs that succeeded, the newest first, and what tells whether there are others by now."""

    jobs: tuple[JobFigures, ...] = ()
    count: int = 0
    total: int = 0  # of the ids

    @property
    def newest(self) -> int:
        return self.jobs[0].job_id if self.jobs else 0


class Overview(DatabasePart):
    """Each method reads at one moment, and may raise StoreError.

    What is finished never changes, and what a job told never does. So it is kept in memory, and a query reads what is
    new only. Jobs that are deleted are missed by the number and the sum of the ids of those that there are.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        # Replaced as a whole, so threads need no lock.
        self._figures = _KeptFigures()
        self._made: Mapping[Callable[[Sequence[JobFigures]], Any], tuple[_KeptFigures, Any]] = {}
        self._curves: Mapping[int, tuple[int, tuple[float, ...]]] = {}  # and the number of events that it is of

    @read_session
    def figures(self, session: Session) -> list[JobFigures]:
        """What the jobs that succeeded came to, the newest first."""
        return list(self._read_figures(session).jobs)

    @read_session
    def of_figures(self, session: Session, make: Callable[[Sequence[JobFigures]], Made]) -> Made:
        """What a function makes of the figures. It is called again only where there are others than before."""
        kept = self._read_figures(session)
        known = self._made.get(make)
        made: Made = known[1] if known is not None and known[0] is kept else make(kept.jobs)
        self._made = {**self._made, make: (kept, made)}
        return made

    @read_session
    def regressions(self, session: Session, limit: int) -> list[NamedEvent]:
        """The newest events of tasks that became slower, of the newest jobs that succeeded and have any."""
        kept = self._read_figures(session)
        regressed = (job.job_id for job in kept.jobs if job.regressed not in ("", "0"))
        query = (
            select(EventRow, JobRow.label, JobRow.target_key)
            .join(JobRow, JobRow.id == EventRow.job_id)
            .where(EventRow.job_id.in_([*islice(regressed, REGRESSED_JOBS)]))
            .where(EventRow.kind == EventKind.REGRESSED.value)
            .order_by(EventRow.job_id.desc(), EventRow.number.desc())
            .limit(limit)
        )
        return [
            NamedEvent(
                Event(row.job_id, row.number, EventKind(row.kind), row.data, row.created_at), label, target_key or ""
            )
            for row, label, target_key in session.execute(query)
        ]

    @read_session
    def curves(self, session: Session, job_ids: Collection[int]) -> dict[int, tuple[float, ...]]:
        """Id -> the speed-ups that a job told, at some moments from its begin to its end or now, in order.

        Only of those that told any. The moments are as far apart by the events between them.
        """
        counts: dict[int, int] = {}
        for batch in batches(dict.fromkeys(job_ids), KEYS_AT_ONCE):
            counts |= dict(session.execute(select(JobRow.id, JobRow.events).where(JobRow.id.in_(batch))).all())
        kept = self._curves
        curves = {job_id: kept[job_id] for job_id, count in counts.items() if kept.get(job_id, (-1,))[0] == count}
        changed = {job_id: count for job_id, count in counts.items() if job_id not in curves}
        speedups = _read_speedups(session, changed)
        fresh = {job_id: (count, speedups.get(job_id, ())) for job_id, count in changed.items()}
        older = {job_id: curve for job_id, curve in kept.items() if job_id not in fresh}
        self._curves = dict([*older.items(), *fresh.items()][-CURVES_KEPT:])
        return {job_id: curve for job_id, (_, curve) in (curves | fresh).items() if curve}

    def _read_figures(self, session: Session) -> _KeptFigures:
        kept, is_done = self._figures, JobRow.state == JobState.SUCCEEDED.value
        count, total = session.execute(select(func.count(), func.sum(JobRow.id)).where(is_done)).one()
        now = count, int(total or 0)
        if now == (kept.count, kept.total):
            return kept
        newer = select(JobRow.id).where(is_done, JobRow.id > kept.newest).order_by(JobRow.id.desc())
        job_ids = session.scalars(newer).all()
        older = kept.jobs
        if now != (kept.count + len(job_ids), kept.total + sum(job_ids)):  # older ones ended, or were deleted
            job_ids = session.scalars(select(JobRow.id).where(is_done).order_by(JobRow.id.desc())).all()
            older = ()
        known = {} if older else {job.job_id: job for job in kept.jobs}
        fresh = _read_of(session, [job_id for job_id in job_ids if job_id not in known])
        jobs = (*(known.get(job_id) or fresh[job_id] for job_id in job_ids), *older)
        self._figures = _KeptFigures(jobs, *now)
        return self._figures


def _read_of(session: Session, job_ids: Sequence[int]) -> dict[int, JobFigures]:
    """The figures of jobs that succeeded, by id."""
    figures: dict[int, JobFigures] = {}
    texts = [JobRow.result[name].as_string() for name in FIGURES]
    dims = JobRow.settings["dims"].as_string()
    query = select(JobRow.id, JobRow.model_sha256, JobRow.target_key, dims, *texts)
    for batch in batches(job_ids, KEYS_AT_ONCE):
        for row in session.execute(query.where(JobRow.id.in_(batch))):
            figures[row.id] = JobFigures(row.id, *("" if value is None else str(value) for value in row[1:]))
    return figures


def _read_speedups(session: Session, events: Mapping[int, int]) -> dict[int, tuple[float, ...]]:
    """The speed-ups of the points of jobs with so many events each."""
    places = [(job_id, number) for job_id, count in events.items() for number in _numbers(count)]
    told: dict[int, dict[int, float]] = {}
    for batch in batches(places, KEYS_AT_ONCE):
        query = select(EventRow.job_id, EventRow.number, EventRow.data).where(
            tuple_(EventRow.job_id, EventRow.number).in_(batch), EventRow.kind == EventKind.PROGRESS.value
        )
        for job_id, number, data in session.execute(query):
            if (speedup := _speedup(data)) is not None:
                told.setdefault(job_id, {})[number] = speedup
    return {job_id: _thinned([speedup for _, speedup in sorted(by.items())]) for job_id, by in told.items()}


def _numbers(count: int) -> list[int]:
    """Numbers of events, evenly spread over all of them, with some neighbours of each."""
    if count <= CURVE_POINTS * NEAR:
        return list(range(1, count + 1))
    ends = {round(count * (point + 1) / CURVE_POINTS) for point in range(CURVE_POINTS)}
    return sorted({max(1, end - step) for end in ends for step in range(NEAR)} | set(range(1, NEAR + 1)))


def _thinned(speedups: list[float]) -> tuple[float, ...]:
    """At most so many points, evenly spread, the last one among them."""
    step = max(1, -(-len(speedups) // CURVE_POINTS))
    return tuple(reversed(speedups[::-1][::step]))


def _speedup(data: Any) -> float | None:
    """A usable speed-up of what a job told, which may be of any version."""
    value = data.get("speedup") if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 < value < 1e9 else None
