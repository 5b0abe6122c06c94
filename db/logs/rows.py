"""Rows of the log as what they stand for: read by every part that finds entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Row, Select, SQLColumnExpression, select, tuple_
from sqlalchemy.orm import Session

from ..database import KEYS_AT_ONCE, batches
from ..errors import NotFound, read_stored
from .choice import LogRival
from .entry import Cost, CostEvidence, EntryState, LogEntry, LogEnvironment
from .tables import EnvironmentRow, LogEntryRow, NamespaceRow, ReleaseEntryRow

PAGE = 500
"""Entries that are read at once, with their values."""

LIGHT = (
    LogEntryRow.id,
    LogEntryRow.key_digest,
    LogEntryRow.environment_id,
    LogEntryRow.choice,
    LogEntryRow.revision,
    LogEntryRow.is_served,
    LogEntryRow.state,
    LogEntryRow.evidence,
    LogEntryRow.time_s,
    LogEntryRow.low_s,
    LogEntryRow.high_s,
    LogEntryRow.samples,
)
"""What writing depends on: all but the keys and values."""


def is_served(release_id: int | None) -> SQLColumnExpression[bool]:
    """Whether an entry is one that lookups get: one of a release, or by the rule of `choice` where None is given.

    Each entry is looked for by the primary key. PostgreSQL would make a join of EXISTS, and of each page a sort.
    """
    if release_id is None:
        return LogEntryRow.is_served
    entry = ReleaseEntryRow.release_id == release_id, ReleaseEntryRow.entry_id == LogEntryRow.id
    return select(ReleaseEntryRow.entry_id).where(*entry).correlate(LogEntryRow).scalar_subquery().is_not(None)


def light(release_id: int | None) -> Sequence[Any]:
    """The columns of `LIGHT`. Whether an entry is served goes by a release, or by the rule."""
    others = (column for column in LIGHT if column is not LogEntryRow.is_served)
    return *others, is_served(release_id).label("is_served")


def whole(release_id: int | None) -> Select[Any]:
    """All that an entry says. Whether it is served goes by a release, or by the rule."""
    bulk = (getattr(LogEntryRow, name) for name in ("key", "value", "machine", "created_at"))
    return select(*bulk, *light(release_id)[2:])


class Environments:
    """The environments of a database by number: those that were read are kept, as they never change."""

    def __init__(self) -> None:
        self.known: dict[int, LogEnvironment] = {}

    def read(self, session: Session, numbers: Iterable[int]) -> Mapping[int, LogEnvironment]:
        """These, at least."""
        for missing in batches(set(numbers) - self.known.keys(), KEYS_AT_ONCE):
            query = select(EnvironmentRow.id, EnvironmentRow.data).where(EnvironmentRow.id.in_(missing))
            for row in session.execute(query):
                self.known[row.id] = read_stored(
                    partial(LogEnvironment.from_json, row.data), EnvironmentRow.__tablename__, "data"
                )
        return self.known

    def entries(self, session: Session, query: Select[Any]) -> Sequence[LogEntry]:
        """The entries that a query of `whole` finds."""
        rows = session.execute(query).all()
        known = self.read(session, {row.environment_id for row in rows})
        # An environment is missing where its namespace was deleted since the rows were read.
        return [entry_of(row, known[row.environment_id]) for row in rows if row.environment_id in known]


def find_namespace(session: Session, database: object, name: str, *, lock: bool = False) -> NamespaceRow:
    """The row of a namespace with entries. Raises NotFound."""
    query = select(NamespaceRow).where(NamespaceRow.name == name)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None or not row.entries:
        raise NotFound(f"{database}: there is no namespace {name}")
    return row


def in_order(namespace_id: int, columns: Sequence[Any], after: Row[Any] | None, limit: int) -> Select[Any]:
    """Entries of a namespace behind one, by key, environment and choice: these are among the columns.

    An index has that order, so a page costs what it has, and what is passed over.
    """
    place = tuple_(LogEntryRow.key_digest, LogEntryRow.environment_id, LogEntryRow.choice)
    query = select(*columns).where(LogEntryRow.namespace_id == namespace_id)
    if after is not None:
        query = query.where(place > (after.key_digest, after.environment_id, after.choice))
    order = LogEntryRow.key_digest, LogEntryRow.environment_id, LogEntryRow.choice
    return query.order_by(*order).limit(limit)


def cost_of(row: Any) -> Cost:
    """The cost that a row tells."""
    return Cost(row.time_s, row.low_s, row.high_s, row.samples, CostEvidence(row.evidence))


def rival_of(row: Any) -> LogRival:
    """What a choice depends on, of a row with the columns of `LIGHT`."""
    return LogRival(row.choice, EntryState(row.state), cost_of(row), row.revision)


def entry_of(row: Any, environment: LogEnvironment) -> LogEntry:
    """The entry of a row of `whole`."""
    return LogEntry(
        row.key,
        row.value,
        environment,
        cost_of(row),
        EntryState(row.state),
        row.machine,
        row.created_at,
        row.revision,
        row.is_served,
    )
