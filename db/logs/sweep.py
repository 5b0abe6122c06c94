"""Sweep: removes the rows of deleted namespaces, and abandoned drafts of releases, a few in each transaction.

A namespace is deleted by its name: its row gets one that no namespace has, and there is an empty one in its place. So
nothing is found of it from then on, and nothing can be written to it, whoever asks; what is left is swept at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import ColumnElement, Connection, delete, func, select, text
from sqlalchemy.orm import Session

from ..database import REMOVED_AT_ONCE, Database
from .drafts import drafts_of, remove_abandoned, remove_draft
from .tables import EnvironmentRow, LogEntryRow, NamespaceRow, PromotionRow

MARK = "/"
"""The begin of the name of a deleted namespace; a namespace's begins with a letter or digit."""


@dataclass(frozen=True, slots=True)
class SweptLog:
    """How many rows were removed, or would be."""

    entries: int
    environments: int


def deleted_name(namespace_id: int) -> str:
    """The name of a deleted namespace."""
    return f"{MARK}{namespace_id}"


def sweep(database: Database, goes_on: Callable[[], bool] = lambda: True) -> SweptLog:
    """Remove what deleted namespaces have left, drafts that nobody went on with, and environments that no entry has.

    Any number of processes may do so at once. It ends early where it is not to go on, which is asked before each
    transaction. Raises StoreError; what was removed until then stays removed.
    """
    entries = 0
    remove_abandoned(database, goes_on)
    for namespace_id in database.retry(lambda: _deleted(database)):
        for draft_id in database.retry(partial(drafts_of, database, namespace_id)):
            remove_draft(database, draft_id, goes_on)
        while goes_on() and (count := database.retry(partial(_remove_some, database, namespace_id))) is not None:
            entries += count
    return SweptLog(entries, database.retry(partial(_remove_environments, database)) if goes_on() else 0)


def swept(session: Session) -> SweptLog:
    """What `sweep` would remove now."""
    of_deleted = LogEntryRow.namespace_id.in_(select(NamespaceRow.id).where(_is_deleted()))
    queries = (
        select(func.count()).select_from(LogEntryRow).where(of_deleted),
        select(func.count()).select_from(EnvironmentRow).where(*_are_unused(~_is_deleted())),
    )
    return SweptLog(*(session.scalar(query) or 0 for query in queries))


def _is_deleted() -> ColumnElement[bool]:
    return NamespaceRow.name.startswith(MARK, autoescape=True)


def _deleted(database: Database) -> list[int]:
    with database.read() as session:
        return list(session.scalars(select(NamespaceRow.id).where(_is_deleted()).order_by(NamespaceRow.id)))


def _remove_some(database: Database, namespace_id: int) -> int | None:
    """Remove some of a deleted namespace, the row itself last; how many entries. None where nothing is left."""
    with database.write_core() as connection:
        # Others that sweep take turns at it.
        row = select(NamespaceRow.id).where(NamespaceRow.id == namespace_id).with_for_update()
        if connection.scalar(row) is None:
            return None
        if count := _delete_first_entries(connection, namespace_id):
            return count
        connection.execute(delete(PromotionRow).where(PromotionRow.namespace_id == namespace_id))
        connection.execute(delete(NamespaceRow).where(NamespaceRow.id == namespace_id))
    return None


def _delete_first_entries(connection: Connection, namespace_id: int) -> int:
    """Delete the first entries of a namespace, by their revisions, of which few are equal; how many."""
    of_namespace, revision = LogEntryRow.namespace_id == namespace_id, LogEntryRow.revision
    first = select(revision).where(of_namespace).order_by(revision).limit(1)
    last = connection.scalar(first.offset(REMOVED_AT_ONCE - 1))
    conditions = [of_namespace] if last is None else [of_namespace, revision <= last]
    return connection.execute(delete(LogEntryRow).where(*conditions)).rowcount


def _remove_environments(database: Database) -> int:
    """Remove environments that no entry has; how many."""
    with database.write_core() as connection:
        if not database.is_sqlite:
            # Each write begins with this table. So none is under way that has chosen an environment and not stored
            # the entry yet; reading goes on.
            connection.execute(text(f"LOCK TABLE {NamespaceRow.__tablename__} IN SHARE MODE"))
        return connection.execute(delete(EnvironmentRow).where(*_are_unused())).rowcount


def _are_unused(*of_namespaces: ColumnElement[bool]) -> tuple[ColumnElement[bool], ...]:
    """Conditions on environments that can go: no entry of any namespace has them, or none of those that meet these.

    Not the newest one: SQLite would use its number again, by which processes know environments that they have read.
    """
    entries = select(LogEntryRow.id).join(NamespaceRow, LogEntryRow.namespace_id == NamespaceRow.id)
    is_used = entries.where(LogEntryRow.environment_id == EnvironmentRow.id, *of_namespaces).exists()
    newest = select(func.max(EnvironmentRow.id)).select_from(EnvironmentRow).scalar_subquery()
    return ~is_used, EnvironmentRow.id < newest
