"""Finder: one question over what people name: jobs, tags, owners, models, and the ops and shapes of tasks.

A question is some words. What is found has all of them, in any case. What is called just so comes first, then what
begins so, then the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from .access import LOCAL, LOCAL_OWNER
from .database import DatabasePart, read_session
from .job import Job
from .job_reader import jobs_of
from .tables import BestRow, JobRow, JobTagRow, KeyRow, TaskRow, UploadRow
from .translate import clean

MOST_WORDS = 8
"""Words of a question that count: the first ones."""

NOTED_JOBS = 10_000
"""Jobs in whose notes words are looked for: the newest ones. Notes are long, and no index helps."""

Column = InstrumentedAttribute[str]


@dataclass(frozen=True, slots=True)
class FoundTask:
    """A task, and where there is a best of it."""

    task_key: str
    op: str
    shape: str  # empty: an older version stored it
    target_key: str  # the first one by name that has a record of it; empty: none has
    targets: int  # that have one


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that was sent."""

    sha256: str
    label: str  # for people; hostile text is possible
    created_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class FoundName:
    """A tag, or a key that submitted something."""

    name: str
    jobs: int
    id: str = ""  # of the key


class Finder(DatabasePart):
    """Each method answers one question with `limit` results at most, none for one without words. They may raise
    StoreError. Whole tables of names are read, not those of trials and events.
    """

    @read_session
    def jobs(self, session: Session, words: str, limit: int) -> list[Job]:
        """Jobs with the words in their label, a tag, the name of who submitted them, or notes of the newest ones."""
        parts = _parts(words)
        if not parts:
            return []
        oldest = select(JobRow.id).order_by(JobRow.id.desc()).offset(NOTED_JOBS - 1).limit(1)
        first_noted = session.scalar(oldest) or 0
        conditions = [
            or_(
                _has(JobRow.label, part),
                and_(JobRow.id >= first_noted, _has(JobRow.notes, part)),
                exists().where(JobTagRow.job_id == JobRow.id, _has(JobTagRow.tag, part)),
                and_(JobRow.owner != "", JobRow.owner.in_(select(KeyRow.id).where(_has(_OWNER_NAME, part)))),
            )
            for part in parts
        ]
        query = select(JobRow).where(*conditions).order_by(_rank(JobRow.label, words), JobRow.id.desc())
        return jobs_of(session, [*session.scalars(query.limit(limit))])

    @read_session
    def tasks(self, session: Session, words: str, limit: int) -> list[FoundTask]:
        """Tasks with the words in their op or their shape, or whose key begins so."""
        parts = _parts(words)
        if not parts:
            return []
        conditions = [
            or_(_has(TaskRow.op, part), _has(TaskRow.shape, part), _begins(TaskRow.key, part)) for part in parts
        ]
        order = (_rank(TaskRow.op, parts[0]), TaskRow.op, TaskRow.shape, TaskRow.key)
        found = select(TaskRow.key, TaskRow.op, TaskRow.shape).where(*conditions).order_by(*order).limit(limit)
        rows = session.execute(found).all()
        on = select(BestRow.task_key, func.min(BestRow.target_key), func.count()).group_by(BestRow.task_key)
        on = on.where(BestRow.task_key.in_([row.key for row in rows]))
        targets: dict[str, tuple[str, int]] = {key: (target, count) for key, target, count in session.execute(on)}
        return [FoundTask(row.key, row.op, row.shape, *targets.get(row.key, ("", 0))) for row in rows]

    @read_session
    def models(self, session: Session, words: str, limit: int) -> list[FoundModel]:
        """Models that are here with the words in their label, or whose digest begins so."""
        parts = _parts(words)
        if not parts:
            return []
        conditions = [or_(_has(UploadRow.label, part), _begins(UploadRow.sha256, part)) for part in parts]
        query = select(UploadRow.sha256, UploadRow.label, UploadRow.created_at).where(*conditions)
        query = query.order_by(_rank(UploadRow.label, words), UploadRow.created_at.desc(), UploadRow.sha256)
        return [FoundModel(*row) for row in session.execute(query.limit(limit))]

    @read_session
    def owners(self, session: Session, words: str, limit: int) -> list[FoundName]:
        """Keys that submitted a job with the words in their name, as others may see it, or whose id begins so."""
        parts = _parts(words)
        if not parts:
            return []
        jobs = select(func.count()).where(JobRow.owner == KeyRow.id).correlate(KeyRow).scalar_subquery()
        conditions = [or_(_has(_OWNER_NAME, part), _begins(KeyRow.id, part)) for part in parts]
        query = select(_OWNER_NAME, jobs, KeyRow.id).where(*conditions, exists().where(JobRow.owner == KeyRow.id))
        query = query.order_by(_rank(_OWNER_NAME, words), _OWNER_NAME, KeyRow.id)
        return [FoundName(*row) for row in session.execute(query.limit(limit))]

    @read_session
    def tags(self, session: Session, words: str, limit: int) -> list[FoundName]:
        """Tags with the words in them."""
        parts = _parts(words)
        if not parts:
            return []
        tag, count = JobTagRow.tag, func.count()
        query = select(tag, count).where(*(_has(tag, part) for part in parts)).group_by(tag)
        return [
            FoundName(*row)
            for row in session.execute(query.order_by(_rank(tag, words), count.desc(), tag).limit(limit))
        ]


_OWNER_NAME: ColumnElement[str] = case(
    (func.substr(KeyRow.name, 1, len(LOCAL)) == LOCAL, LOCAL_OWNER), else_=KeyRow.name
)
"""The name of a key as others than its owner may see it: `Keys.owner_names`."""


def _parts(words: str) -> Sequence[str]:
    return clean(words).split()[:MOST_WORDS]


def _has(text: Column | ColumnElement[str], part: str) -> ColumnElement[bool]:
    return text.icontains(part, autoescape=True)


def _begins(key: Column, part: str) -> ColumnElement[bool]:
    return key.startswith(part.lower(), autoescape=True)


def _rank(name: Column | ColumnElement[str], words: str) -> ColumnElement[Any]:
    """0 where a name is just the words, 1 where it begins with them, else 2."""
    asked = clean(words).strip()
    return case((func.lower(name) == asked.lower(), 0), (name.istartswith(asked, autoescape=True), 1), else_=2)
